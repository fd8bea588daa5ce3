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
_ENTRY = re.compile(r"(?P<mechanism>SCRAM-SHA-(?:256|512))=\[(?P<fields>.*)\]")
_BASE64_FIELDS = ("salt", "stored_key", "server_key")
_FIELDS = (*_BASE64_FIELDS, "iterations")


class InvalidEntry(ValueError):
    """The error of an unusable entry of a users file. Its message has no part of a password."""


class ScramCredential(Struct, frozen=True):
    """A SCRAM credential, as a server stores it (RFC 5802, section 3).

    Neither the password nor a key of the client can be derived from it. Its `repr` has no secrets.
    """

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int = MIN_ITERATIONS

    @classmethod
    def of(cls, mechanism: str, password: str, iterations: int = MIN_ITERATIONS) -> Self:
        """Return a credential of this password, with a new salt."""
        hash_name, salt = HASHES[mechanism], secrets.token_bytes(_SALT_BYTES)
        salted_password = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)
        client_key = hmac.digest(salted_password, b"Client Key", hash_name)
        stored_key = hashlib.new(hash_name, client_key).digest()
        server_key = hmac.digest(salted_password, b"Server Key", hash_name)
        return cls(salt, stored_key, server_key, iterations)

    @classmethod
    def parse(cls, mechanism: str, text: str) -> Self:
        """Parse `salt=...,stored_key=...,server_key=...,iterations=...`. Raises InvalidEntry."""
        parts = (part.partition("=") for part in text.split(","))
        fields = {name: value for name, _, value in parts}
        if sorted(fields) != sorted(_FIELDS):
            raise InvalidEntry(f"a {mechanism} entry has {', '.join(_FIELDS)}")
        try:
            salt, stored_key, server_key = (b64decode(fields[name], validate=True) for name in _BASE64_FIELDS)
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
        """Return the credential as a users file has it after the name and the colon."""
        fields = [f"{name}={b64encode(getattr(self, name)).decode()}" for name in _BASE64_FIELDS]
        return f"{mechanism}=[{','.join(fields)},iterations={self.iterations}]"

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"


class Users:
    """The users of one file, for authentication.

    For `derived_mechanisms`, SCRAM credentials are derived from passwords when the file is read. If they were
    derived at the first authentication, its slowness would reveal that the user exists.
    """

    def __init__(self, lines: Iterable[str] = (), derived_mechanisms: Iterable[str] = ()) -> None:
        """Read the lines of a users file. Raises InvalidEntry, with the number of the line."""
        self._password_digests: dict[str, bytes] = {}  # by user
        # By mechanism and user.
        self._scram: dict[str, dict[str, ScramCredential]] = {mechanism: {} for mechanism in HASHES}
        passwords: dict[str, str] = {}  # in clear, only until credentials are derived from them
        for number, line in enumerate(lines, 1):
            if line.strip() and not line.startswith("#"):
                try:
                    self._add(line, passwords)
                except InvalidEntry as error:
                    raise InvalidEntry(f"line {number}: {error}") from None
        # Mechanisms with SCRAM entries in the file. Derived credentials do not count.
        self._file_mechanisms = frozenset(mechanism for mechanism, users in self._scram.items() if users)
        for mechanism in derived_mechanisms:
            for name, password in passwords.items():
                if name not in self._scram[mechanism]:
                    self._scram[mechanism][name] = ScramCredential.of(mechanism, password)
        self._made_up = {mechanism: _MadeUpCredentials(users) for mechanism, users in self._scram.items()}

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The mechanisms of the file's entries: PLAIN for a password, SCRAM only for a SCRAM entry."""
        plain = ["PLAIN"] if self._password_digests else []
        return (*plain, *sorted(self._file_mechanisms))

    def has_password(self, name: str, password: bytes) -> bool:
        """Return True if the user has this password. An unknown user takes the same time."""
        expected = self._password_digests.get(name)
        is_equal = hmac.compare_digest(_digest(password), expected or _digest(b""))
        return is_equal and expected is not None

    def credential(self, mechanism: str, name: str) -> tuple[ScramCredential, bool]:
        """Return the user's credential, and True if the user exists.

        An unknown user gets a made-up credential, always the same, so that its client gets a salt like any
        other.
        """
        credential = self._scram[mechanism].get(name)
        # Computed for every user, so that the time does not reveal who exists.
        made_up = self._made_up[mechanism].credential(name, mechanism)
        return (made_up, False) if credential is None else (credential, True)

    def _add(self, line: str, passwords: dict[str, str]) -> None:
        """Add the entry of a line. Its password, if it has one, is also added to `passwords`."""
        name, colon, secret = line.partition(":")
        if not (name and colon and secret):
            raise InvalidEntry("it is not NAME:PASSWORD")
        match = _ENTRY.fullmatch(secret)
        if match is None and secret.strip().upper().startswith("SCRAM-"):
            # As a password, it would authenticate anyone who can read the file.
            raise InvalidEntry("a malformed SCRAM entry")
        mechanism = "PLAIN" if match is None else match["mechanism"]
        entries: Mapping[str, object] = self._password_digests if match is None else self._scram[mechanism]
        if name in entries:
            raise InvalidEntry(f"a second entry of {name!r} for {mechanism}")
        if match is None:
            passwords[name] = secret
            self._password_digests[name] = _digest(secret.encode())
        else:
            self._scram[mechanism][name] = ScramCredential.parse(mechanism, match["fields"])


class _MadeUpCredentials:
    """A generator of credentials for unknown users.

    They have the most frequent salt size and number of iterations of the file, so they look like real ones.
    """

    def __init__(self, credentials: Mapping[str, ScramCredential]) -> None:
        shapes = Counter((len(one.salt), one.iterations) for one in credentials.values())
        self._salt_bytes, self._iterations = (
            shapes.most_common(1)[0][0] if shapes else (_SALT_BYTES, MIN_ITERATIONS)
        )
        self._secret = secrets.token_bytes(64)

    def credential(self, name: str, mechanism: str) -> ScramCredential:
        """Return the credential of an unknown user, always the same for this name."""
        hash_name = HASHES[mechanism]
        salt = hmac.digest(self._secret, b"salt" + name.encode(), "sha512")
        key = hmac.digest(self._secret, b"key" + name.encode(), hash_name)
        while len(salt) < self._salt_bytes:
            salt += hmac.digest(self._secret, salt, "sha512")
        return ScramCredential(salt[: self._salt_bytes], key, key, self._iterations)


def _digest(password: bytes) -> bytes:
    """Return a digest of fixed size, so that a comparison does not reveal the length of a password."""
    return hashlib.sha256(password).digest()
