"""Names of certificates, with the results of Kafka's and Java's own classes for them.

`CASES` are rules of `ssl.principal.mapping.rules`, a name, and the principal of Kafka's SslPrincipalMapper,
which is None if no rule applies. `NAMES` are the attributes of a certificate's subject in their order, one
list for each part, and the text of Java's X500Principal.
"""

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

Attributes = list[list[tuple[x509.ObjectIdentifier, str]]]

ANN = "CN=Ann,OU=Readers,O=Example,C=DE"

CASES: list[tuple[str, str, str | None]] = [
    ("DEFAULT", ANN, ANN),
    ("", ANN, None),
    (" , ,DEFAULT,, ", ANN, ANN),
    ("RULE:^CN=(.*?),.*$/$1/", ANN, "Ann"),
    ("RULE:^CN=(.*?),.*$/$1/L", ANN, "ann"),
    ("RULE:^CN=(.*?),.*$/$1/U", ANN, "ANN"),
    ("RULE:^CN=(.*?),OU=(.*?),O=(.*?),C=(.*?)$/$1@$2/L", ANN, "ann@readers"),
    ("RULE:^CN=(.*?),OU=(.*?),O=(.*?),C=(.*?)$/$1@$9/", ANN, "Ann@$9"),
    ("RULE:^CN=(.*?),OU=(.*?),O=(.*?),C=(.*?)$/$1@$23/", ANN, "Ann@Readers3"),
    ("RULE:^CN=(.*?),OU=(.*?),O=(.*?),C=(.*?)$/$0/", ANN, ANN),
    ("RULE:^CN=(.*?),OU=(.*?),O=(.*?),C=(.*?)$/$01/", ANN, "Ann"),
    ("RULE:^CN=(.*?),OU=(.*?),O=(.*?),C=(.*?)$/\\$1/", ANN, "$1"),
    ("RULE:^CN=(.*?),OU=(.*?),O=(.*?),C=(.*?)$/a\\/$1/", ANN, "a/Ann"),
    ("RULE:^CN=([A-Za-z]+)$/$1/,RULE:^CN=([A-Za-z]+),OU=Readers,.*$/reader-$1/L", ANN, "reader-ann"),
    ("RULE:^CN=([A-Za-z]+)$/$1/,DEFAULT", ANN, ANN),
    ("RULE:^CN=([A-Za-z]+)$/$1/", ANN, None),
    ("RULE:CN=(.*?)/$1/", "CN=Ann", "Ann"),
    ("RULE:.*/x/", "CN=Ann", "xx"),
    ("RULE:[A-Za-z=]/x/", "CN=Ann", None),
    ("RULE:[A-Za-z=]+/x/", "CN=Ann", "x"),
    ("RULE:^CN=((\\\\, *|\\w)+)(,.*|$)/$1/,DEFAULT", "CN=Smith\\, Ann,OU=Readers,C=DE", "Smith\\, Ann"),
    ("RULE:^(CN=Ann)?(.*)$/$1-$2/", "CN=Bob", "-CN=Bob"),
    ("RULE:(C)(N)(=)(A)(n)(n)(,)(O)(U)(=)(R)(.*)/$12$11$1/", ANN, "eaders,O=Example,C=DERC"),
    (" RULE:^CN=(.*?),.*$/$1/U  ,  DEFAULT ", ANN, "ANN"),
    ("RULE://", "", ""),
    ("RULE: /x/", ANN, None),
]

_C, _O, _OU, _CN = (
    NameOID.COUNTRY_NAME,
    NameOID.ORGANIZATION_NAME,
    NameOID.ORGANIZATIONAL_UNIT_NAME,
    NameOID.COMMON_NAME,
)

NAMES: list[tuple[Attributes, str]] = [
    ([[(_C, "DE")], [(_O, "Example, Inc.")], [(_CN, "ann")]], r"CN=ann,O=Example\, Inc.,C=DE"),
    ([[(_CN, ' #a = b+c<d>;"e\\ ')]], r"CN=\ \#a \= b\+c\<d\>\;\"e\\\ "),
    ([[(_CN, "  two  ")]], r"CN=\ \ two\ \ "),
    ([[(_CN, "   ")]], r"CN=\ \ \ "),
    ([[(_CN, "zażółć ☃")]], "CN=zażółć ☃"),
    ([[(_CN, "a\x00b\tc")]], "CN=a\\00b\tc"),
    ([[(NameOID.EMAIL_ADDRESS, "a@b.c")], [(_CN, "mail")]], "CN=mail,1.2.840.113549.1.9.1=#16056140622e63"),
    (
        [[(NameOID.SERIAL_NUMBER, "7")], [(NameOID.SURNAME, "x" * 130)]],
        f"2.5.4.4=#0c8182{'78' * 130},2.5.4.5=#130137",
    ),
    (
        [
            [(NameOID.DOMAIN_COMPONENT, "com")],
            [(NameOID.USER_ID, "u")],
            [(NameOID.STREET_ADDRESS, "s 1")],
            [(NameOID.LOCALITY_NAME, "l")],
            [(NameOID.STATE_OR_PROVINCE_NAME, "p")],
        ],
        "ST=p,L=l,STREET=s 1,UID=u,DC=com",
    ),
    ([[(_CN, "two"), (NameOID.USER_ID, "u")], [(_OU, "zz"), (_CN, "aa")]], "CN=aa+OU=zz,CN=two+UID=u"),
]


def request_of(attributes: Attributes) -> bytes:
    """Return a certificate request with this subject, in DER."""
    parts = [
        x509.RelativeDistinguishedName([x509.NameAttribute(*attribute) for attribute in part])
        for part in attributes
    ]
    builder = x509.CertificateSigningRequestBuilder(x509.Name(parts))
    return builder.sign(Ed25519PrivateKey.generate(), None).public_bytes(Encoding.DER)
