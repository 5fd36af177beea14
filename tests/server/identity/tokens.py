"""Tokens of a provider, signed with keys made for the test."""

import json
import time
from typing import Any

import jwt
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
        """Its public key."""
        public = ECAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        return json.dumps({"keys": [public | {"kid": self._kid, "use": "sig", "alg": "ES256"}]})

    def token(self, **claims: Any) -> str:
        """A token of the tenant acme that is valid for an hour, unless `claims` say otherwise; None leaves one out."""
        payload = {"iss": ISSUER, "aud": AUDIENCE, "sub": "acme", "exp": int(time.time()) + 3600} | claims
        present = {name: value for name, value in payload.items() if value is not None}
        return jwt.encode(present, self._key, "ES256", {"kid": self._kid})
