"""What a 404 says about paths that people try: which path serves what they probably want."""

from typing import Any

from glimpse.gateway.replicas.refusals import refusal

_CHAT = "Use POST /v1/chat/completions."
_DOCUMENT = "GET /openapi.json lists the paths."

_HINTS = (
    (r"/glimpse/v1/.*", "GET /glimpse/v1/openapi.json lists the typed methods."),
    (
        r"/glimpse\.v1\..*",
        "Send gRPC or grpc-web here; JSON goes to POST /glimpse/v1/…; Connect needs a gateway with --connect.",
    ),
    (r".*/chat(/completions?)?/?", _CHAT),
    (r".*/responses?(/.*)?", "Use POST /v1/responses."),
    (r".*/messages(/count_tokens)?/?", "Use POST /v1/messages."),
    (r".*/files(/.*)?", "Use /v1/files."),
    (r".*/batches(/.*)?", "Use /v1/batches."),
    (r".*/(completions?|generate(_stream)?|infer|invocations)/?", f"{_CHAT[:-1]}, or POST /v1/completions."),
    (r".*/embed(dings?)?/?", "Use POST /v1/embeddings."),
    (r".*/re-?rank(ings?)?/?", "Use POST /v1/rerank."),
    (r".*/scores?/?", "Use POST /v1/score."),
    (r".*/detokenize/?", "Use POST /detokenize."),
    (r".*/tokenize/?", "Use POST /tokenize."),
    (r".*/(models?|tags)/?", "Use GET /v1/models."),
    (r".*/metrics/?", "The server serves its metrics on a port of their own; --metrics-upstream adds them here."),
    (r".*/(healthz?|livez|readyz|ready|live|ping|status)/?", "Use GET /health."),
    (r".*/version/?", "Use GET /version."),
    (r".*/(openapi|swagger)(\.json|\.yaml)?/?", "Use GET /openapi.json."),
    (r"(/api|/openai)?(/v\d+\w*)?/?", f"It is a base URL for clients. {_DOCUMENT}"),
    (
        r".*/(audio|images|uploads|assistants|threads|fine_tuning|moderations|realtime)(/.*)?",
        f"This part of OpenAI's API is not served. {_DOCUMENT}",
    ),
)
"""Regular expressions of paths, and what to do. The first that matches applies."""

_PAGE_HINTS = ((r"/(docs|redoc|swagger|api-docs|reference)(/.*)?", "Use GET /docs."),)
_NO_PAGE_HINTS = ((r"/|/docs/?", f"This gateway runs with --no-page. {_DOCUMENT}"),)


def unknown_path_routes(*, page: bool, max_wait: str) -> list[dict[str, Any]]:
    """Returns Envoy's last routes: 404 for every path, with a hint as body.

    Args:
        page: the gateway serves the page and /docs.
        max_wait: how long a body may take; then the answer is 408.
    """
    hints = (*(_PAGE_HINTS if page else _NO_PAGE_HINTS), *_HINTS)
    matches = [*(({"safe_regex": {"regex": pattern}}, hint) for pattern, hint in hints), ({"prefix": "/"}, _DOCUMENT)]
    return [refusal(match, 404, max_wait=max_wait, body=hint) for match, hint in matches]
