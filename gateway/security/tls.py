"""TLS at the listeners: the certificate, and the CAs of the clients' certificates.

A listener keeps the context with which it was opened. So each handshake takes the current files' context, in
the callback for the server's name, which OpenSSL calls at every handshake, also where the client sends no
name.
"""

import ssl

from gateway.security.settings import ClientAuth, SecurityError, SecuritySettings
from gateway.watched_files import WatchedFiles

_VERIFY = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}


def tls_context(settings: SecuritySettings) -> ssl.SSLContext:
    """Read the files of the settings, which name a certificate. Raises SecurityError."""
    assert settings.keystore is not None
    context = _empty_context(settings)
    try:
        context.load_cert_chain(settings.keystore, settings.key, settings.key_password or "")
    except (OSError, ValueError) as error:  # includes SSLError
        raise SecurityError(f"the TLS certificate {settings.keystore} cannot be used: {error}") from error
    if settings.client_auth is not ClientAuth.NONE:
        try:
            context.load_verify_locations(settings.truststore)
        except (OSError, ValueError) as error:
            raise SecurityError(f"the CAs in {settings.truststore} cannot be used: {error}") from error
    return context


def following(settings: SecuritySettings, files: WatchedFiles[ssl.SSLContext]) -> ssl.SSLContext:
    """A context for a listener, which does every handshake with the files' current context."""

    def use_current(handshake: ssl.SSLObject, _name: str | None, _listener: ssl.SSLContext) -> None:
        handshake.context = files.value

    context = _empty_context(settings)
    context.sni_callback = use_current
    return context


def _empty_context(settings: SecuritySettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = _VERIFY[settings.client_auth]
    if settings.client_auth is not ClientAuth.NONE:
        # A session that is resumed would not be checked against CAs that were read since. TLS 1.2 resumes
        # without tickets too, by the id of a session in OpenSSL's cache, which Python cannot switch off.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
    return context
