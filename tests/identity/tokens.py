"""Tokens of a provider, signed with keys made for the test, and where its public keys are published."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

ISSUER, AUDIENCE = "https://issuer.example", "glimpse"


class Provider:
    """An identity provider with one key."""

    def __init__(self, kid: str = "first") -> None:
        self._kid = kid
        self._key = ec.generate_private_key(ec.SECP256R1())

    @property
    def jwks(self) -> str:
        """The issuer's public key."""
        public = ECAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        return json.dumps({"keys": [public | {"kid": self._kid, "use": "sig", "alg": "ES256"}]})

    def token(self, **claims: Any) -> str:
        """A token of the tenant acme that is valid for an hour, unless `claims` say otherwise; None leaves one out."""
        payload = {"iss": ISSUER, "aud": AUDIENCE, "sub": "acme", "exp": int(time.time()) + 3600} | claims
        present = {name: value for name, value in payload.items() if value is not None}
        return jwt.encode(present, self._key, "ES256", {"kid": self._kid})


@asynccontextmanager
async def published(jwks: str, *, certificate: Path | None = None, host: str = "localhost") -> AsyncGenerator[str]:
    """Serves a JWKS in two pieces at a URL: https:// with a certificate, whose key is beside it."""

    async def serve(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for piece in (jwks[:100], jwks[100:]):
            await answer.write(piece.encode())
            await asyncio.sleep(0.05)
        return answer

    tls = None
    if certificate is not None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(certificate, certificate.with_suffix(".key"))
    app = web.Application()
    app.router.add_get("/jwks", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield f"{'http' if tls is None else 'https'}://{host}:{runner.addresses[0][1]}/jwks"
    finally:
        await runner.cleanup()
