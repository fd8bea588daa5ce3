"""Computes the partition of `__consumer_offsets` that has a group, in Kafka and in Redpanda.

Source: GroupCoordinator.partitionFor; Redpanda's coordinator_ntp_mapper.h, xx.h and jump_consistent_hash.h.
"""

from struct import unpack_from

_MIN = 1 << 31
_ALL = (1 << 64) - 1
_PRIMES = (
    0x9E37_79B1_85EB_CA87,
    0xC2B2_AE3D_27D4_EB4F,
    0x1656_67B1_9E37_79F9,
    0x85EB_CA77_C2B2_AE63,
    0x27D4_EB2F_1656_67C5,
)
_STRIPE_BYTES = 32
_JUMP = 2_862_933_555_777_941_757


def partition_of_offsets(group_id: str, partitions: int) -> int:
    """Return a group's partition in Kafka, of a topic with `partitions` partitions: by String.hashCode."""
    units = memoryview(group_id.encode("utf-16-le", "surrogatepass")).cast("H")
    code = 0
    for unit in units:
        code = (31 * code + unit) & 0xFFFF_FFFF
    # As in Utils.abs, the minimum int, which has no absolute value, becomes 0.
    return (0 if code == _MIN else code if code < _MIN else (1 << 32) - code) % partitions


def redpandas_partition(group_id: str, partitions: int) -> int:
    """Return a group's partition in Redpanda, of a topic with `partitions` partitions: a jump consistent hash
    of the XXH64.
    """
    key, found, following = xxh64(group_id.encode()), -1, 0
    while following < partitions:
        found = following
        key = (key * _JUMP + 1) & _ALL
        following = int((found + 1) * (float(1 << 31) / float((key >> 33) + 1)))
    return found


def xxh64(data: bytes) -> int:
    """Return the XXH64 hash of `data` with seed 0."""
    prime_1, prime_2, prime_3, prime_4, prime_5 = _PRIMES
    at, code = 0, prime_5
    if len(data) >= _STRIPE_BYTES:
        lanes = [(prime_1 + prime_2) & _ALL, prime_2, 0, -prime_1 & _ALL]
        for at in range(0, len(data) - _STRIPE_BYTES + 1, _STRIPE_BYTES):
            words = unpack_from("<4Q", data, at)
            lanes = [_round(lane, word) for lane, word in zip(lanes, words, strict=True)]
        at += _STRIPE_BYTES
        code = sum(_turned(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) & _ALL
        for lane in lanes:
            code = ((code ^ _round(0, lane)) * prime_1 + prime_4) & _ALL
    code = (code + len(data)) & _ALL
    while at + 8 <= len(data):
        code = (_turned(code ^ _round(0, unpack_from("<Q", data, at)[0]), 27) * prime_1 + prime_4) & _ALL
        at += 8
    if at + 4 <= len(data):
        word = unpack_from("<I", data, at)[0] * prime_1 & _ALL
        code = (_turned(code ^ word, 23) * prime_2 + prime_3) & _ALL
        at += 4
    for byte in data[at:]:
        code = _turned(code ^ (byte * prime_5 & _ALL), 11) * prime_1 & _ALL
    code = (code ^ (code >> 33)) * prime_2 & _ALL
    code = (code ^ (code >> 29)) * prime_3 & _ALL
    return code ^ (code >> 32)


def _round(lane: int, word: int) -> int:
    return _turned((lane + word * _PRIMES[1]) & _ALL, 31) * _PRIMES[0] & _ALL


def _turned(number: int, bits: int) -> int:
    return ((number << bits) | (number >> (64 - bits))) & _ALL
