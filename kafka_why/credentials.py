"""The users of SASL/PLAIN and SASL/SCRAM, from a file with one entry a line:

    NAME:PASSWORD
    NAME:SCRAM-SHA-512=[salt=...,stored_key=...,server_key=...,iterations=4096]

The part in brackets is the form in which Kafka stores a SCRAM credential. A password serves PLAIN, and SCRAM
too. A SCRAM entry serves its own mechanism only, because the password cannot be found from it. Empty lines
and lines that begin with # are skipped. A name has no colon, and no password begins with SCRAM-.

Names and passwords are not prepared (SASLprep), as in Kafka and in its clients.
"""

import binascii
import hashlib
import hmac
import re
import secrets
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Self

from msgspec import Struct

MIN_ITERATIONS, MAX_ITERATIONS = 4_096, 16_384
"""Kafka's bounds (ScramMechanism)."""

HASHES: Mapping[str, str] = MappingProxyType({"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"})
"""The hash function of each SCRAM mechanism."""

_SALT_BYTES = 24
_ENTRY = re.compile(r"(SCRAM-SHA-(?:256|512))=\[(.*)\]")
_FIELDS = ("salt", "stored_key", "server_key", "iterations")


class InvalidEntry(ValueError):
    """The error of an unusable entry of a users file. Its message has no part of a password."""


class ScramCredential(Struct, frozen=True):
    """A SCRAM credential, as a server stores it (RFC 5802, section 3). Its text shows none of it.

    Neither the password nor a key of the client can be derived from it.
    """

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int = MIN_ITERATIONS

    @classmethod
    def of(cls, mechanism: str, password: str, iterations: int = MIN_ITERATIONS) -> Self:
        """Return a credential of this password, with a new salt."""
        name, salt = HASHES[mechanism], secrets.token_bytes(_SALT_BYTES)
        salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", name)
        return cls(
            salt, hashlib.new(name, client_key).digest(), hmac.digest(salted, b"Server Key", name), iterations
        )

    @classmethod
    def parse(cls, mechanism: str, text: str) -> Self:
        """Parse `salt=...,stored_key=...,server_key=...,iterations=...`. Raises InvalidEntry."""
        fields = dict(part.partition("=")[::2] for part in text.split(","))
        if sorted(fields) != sorted(_FIELDS):
            raise InvalidEntry(f"a {mechanism} entry has {', '.join(_FIELDS)}")
        try:
            salt, stored_key, server_key = (b64decode(fields[name], validate=True) for name in _FIELDS[:3])
        except (binascii.Error, ValueError):
            raise InvalidEntry("salt, stored_key and server_key have to be base64") from None
        size = hashlib.new(HASHES[mechanism]).digest_size
        if not salt or len(stored_key) != size or len(server_key) != size:
            raise InvalidEntry(f"salt, stored_key or server_key has the wrong size for {mechanism}")
        digits = fields["iterations"]
        if not (re.fullmatch("[0-9]{4,5}", digits) and MIN_ITERATIONS <= int(digits) <= MAX_ITERATIONS):
            raise InvalidEntry(f"iterations have to be {MIN_ITERATIONS} to {MAX_ITERATIONS}")
        return cls(salt, stored_key, server_key, int(digits))

    def entry(self, mechanism: str) -> str:
        """Return what follows the name and the colon in a users file."""
        values = (
            *(b64encode(part).decode() for part in (self.salt, self.stored_key, self.server_key)),
            str(self.iterations),
        )
        return f"{mechanism}=[{','.join(map('='.join, zip(_FIELDS, values, strict=True)))}]"

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"


class Users:
    """The users of one file. Their text has neither passwords nor credentials.

    SCRAM credentials of passwords are computed at once, for the mechanisms in `derived`. At the first
    authentication, the time for it would reveal that the user exists.
    """

    def __init__(self, lines: Iterable[str] = (), derived: Iterable[str] = ()) -> None:
        """Read the lines of a users file. Raises InvalidEntry, with the number of the line."""
        self._passwords: dict[str, bytes] = {}
        self._scram: dict[str, dict[str, ScramCredential]] = {mechanism: {} for mechanism in HASHES}
        passwords: dict[str, str] = {}
        for number, line in enumerate(lines, 1):
            if line.strip() and not line.startswith("#"):
                try:
                    self._add(line, passwords)
                except InvalidEntry as error:
                    raise InvalidEntry(f"line {number}: {error}") from None
        self._salted = frozenset(mechanism for mechanism, found in self._scram.items() if found)
        for mechanism in derived:
            for name, password in passwords.items():
                if name not in self._scram[mechanism]:
                    self._scram[mechanism][name] = ScramCredential.of(mechanism, password)
        self._unknown = {mechanism: _Unknown(found) for mechanism, found in self._scram.items()}

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The mechanisms of the file's entries: PLAIN for passwords, SCRAM for salted entries."""
        return (*(["PLAIN"] if self._passwords else []), *sorted(self._salted))

    def has_password(self, name: str, password: bytes) -> bool:
        """Return True if the user has this password. An unknown user takes the same time."""
        expected = self._passwords.get(name)
        is_equal = hmac.compare_digest(_digest(password), expected or _digest(b""))
        return is_equal and expected is not None

    def credential(self, mechanism: str, name: str) -> tuple[ScramCredential, bool]:
        """Return the user's credential, and True if the user exists.

        An unknown user gets a made-up credential, always the same, so that its client gets a salt like any
        other.
        """
        found = self._scram[mechanism].get(name)
        unknown = self._unknown[mechanism].credential(name, mechanism)
        return (unknown, False) if found is None else (found, True)

    def _add(self, line: str, passwords: dict[str, str]) -> None:
        name, colon, secret = line.partition(":")
        if not (name and colon and secret):
            raise InvalidEntry("it is not NAME:PASSWORD")
        match = _ENTRY.fullmatch(secret)
        if match is None and secret.strip().upper().startswith("SCRAM-"):
            # As a password, it would authenticate anyone who can read the file.
            raise InvalidEntry("a malformed SCRAM entry")
        known: Mapping[str, object] = self._passwords if match is None else self._scram[match[1]]
        if name in known:
            raise InvalidEntry(f"a second entry of {name!r} for {'PLAIN' if match is None else match[1]}")
        if match is None:
            passwords[name] = secret
            self._passwords[name] = _digest(secret.encode())
        else:
            self._scram[match[1]][name] = ScramCredential.parse(match[1], match[2])


class _Unknown:
    """A generator of credentials for users that do not exist, in the form of most users' credentials."""

    def __init__(self, known: Mapping[str, ScramCredential]) -> None:
        shapes = Counter((len(one.salt), one.iterations) for one in known.values())
        self._salt_bytes, self._iterations = (
            shapes.most_common(1)[0][0] if shapes else (_SALT_BYTES, MIN_ITERATIONS)
        )
        self._key = secrets.token_bytes(64)

    def credential(self, name: str, mechanism: str) -> ScramCredential:
        hash_name = HASHES[mechanism]
        salt = hmac.digest(self._key, b"salt" + name.encode(), "sha512")
        key = hmac.digest(self._key, b"key" + name.encode(), hash_name)
        while len(salt) < self._salt_bytes:
            salt += hmac.digest(self._key, salt, "sha512")
        return ScramCredential(salt[: self._salt_bytes], key, key, self._iterations)


def _digest(password: bytes) -> bytes:
    # Of fixed size, so that comparing passwords does not reveal their lengths.
    return hashlib.sha256(password).digest()
