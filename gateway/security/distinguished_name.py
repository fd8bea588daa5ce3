"""The subject of a certificate as text, as Java's X500Principal.getName() writes it (RFC 2253).

The parts are in the reverse order of the certificate. Kafka's principals and mapping rules depend on this
form.
"""

from cryptography import x509
from cryptography.x509.oid import NameOID

# The keywords of RFC 2253. Other types of attributes are written as numbers, their values as bytes.
_KEYWORDS = {
    NameOID.COMMON_NAME: "CN",
    NameOID.COUNTRY_NAME: "C",
    NameOID.LOCALITY_NAME: "L",
    NameOID.STATE_OR_PROVINCE_NAME: "ST",
    NameOID.ORGANIZATION_NAME: "O",
    NameOID.ORGANIZATIONAL_UNIT_NAME: "OU",
    NameOID.STREET_ADDRESS: "STREET",
    NameOID.DOMAIN_COMPONENT: "DC",
    NameOID.USER_ID: "UID",
}
_ESCAPED = frozenset(',=+<>#;"\\')
_OBJECT_IDENTIFIER = 0x06


def subject_of(certificate: bytes) -> str:
    """Return the subject of a certificate in DER as text. Raises ValueError."""
    return name_text(x509.load_der_x509_certificate(certificate).subject)


def name_text(name: x509.Name) -> str:
    """Return a name as text, such as `CN=ann,OU=readers,O=Example`."""
    return ",".join("+".join(map(_attribute, part)) for part in reversed(name.rdns))


def _attribute(attribute: x509.NameAttribute[str | bytes]) -> str:
    keyword, value = _KEYWORDS.get(attribute.oid), attribute.value
    if keyword is None or not isinstance(value, str):
        return f"{keyword or attribute.oid.dotted_string}=#{_encoded_value(attribute).hex()}"
    return f"{keyword}={_escaped(value)}"


def _escaped(value: str) -> str:
    text = "".join("\\00" if char == "\0" else f"\\{char}" if char in _ESCAPED else char for char in value)
    inner = text.strip(" ")
    leading, trailing = len(text) - len(text.lstrip(" ")), len(text) - len(text.rstrip(" "))
    return text if inner == text else "\\ " * leading + inner + "\\ " * (trailing if inner else 0)


def _encoded_value(attribute: x509.NameAttribute[str | bytes]) -> bytes:
    """Return the value in DER: the bytes after the type, in the encoding of a name with only this
    attribute.
    """
    rest = x509.Name([attribute]).public_bytes()
    while rest[0] != _OBJECT_IDENTIFIER:
        rest = rest[_content_at(rest) :]
    return rest[_content_at(rest) + rest[1] :]


def _content_at(der: bytes) -> int:
    """Return the offset of the content of the first element, after its tag and its size."""
    return 2 if der[1] < 0x80 else 2 + (der[1] & 0x7F)
