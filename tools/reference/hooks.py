"""Hooks of MkDocs: they add the references of both APIs to the site."""

import json
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from glimpse.gateway.openapi.document import compiled_protos
from tools.reference.grpc_pages import grpc_pages
from tools.reference.rest_page import rest_page

ROOT = Path(__file__).resolve().parents[2]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages, and the OpenAPI document itself."""
    document = (ROOT / "gateway" / "openapi.json").read_text()
    pages = {f"reference/grpc/{name}": text for name, text in grpc_pages(compiled_protos(ROOT)).items()}
    pages |= {"reference/rest.md": rest_page(json.loads(document)), "reference/openapi.json": document}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files
