"""The schemas of the records of `__consumer_offsets`, from the jar of Kafka's group coordinator.

    .venv/bin/python -m tests.harness.coordinator_schemas

writes them to the package data of `kafka_why.observed.consumer_offsets`.
"""

import json
import re
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from embedded.jars import jar_paths
from kafka_why.observed.consumer_offsets import schemas

_JAR = re.compile(r"kafka-group-coordinator-\d[\d.]*\.jar")
_COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)
_KEPT = ("type", "apiKey", "name", "validVersions", "flexibleVersions", "fields")
_NOT_READ = ("about", "ignorable")


def of_kafka() -> list[dict[str, Any]]:
    """Return the schemas of Kafka's jar in their compact form, by type."""
    (jar,) = (path for path in jar_paths("broker") if _JAR.fullmatch(path.name))
    with ZipFile(jar) as archive:
        names = [name for name in archive.namelist() if name.startswith("common/message/") and "." in name]
        schemas_of_jar = [json.loads(_COMMENT.sub("", archive.read(name).decode())) for name in names]
    return sorted(map(_compact, schemas_of_jar), key=lambda schema: (schema["apiKey"], schema["type"]))


def _compact(schema: dict[str, Any]) -> dict[str, Any]:
    common = {struct["name"]: struct["fields"] for struct in schema.get("commonStructs", ())}
    fields = [_field(field, common) for field in schema["fields"]]
    return {name: schema[name] for name in _KEPT} | {"fields": fields}


def _field(field: dict[str, Any], common: dict[str, Any]) -> dict[str, Any]:
    compact = {name: value for name, value in field.items() if name not in _NOT_READ}
    compact.setdefault("versions", field.get("taggedVersions"))  # Kafka's generator takes these, too
    inner = field.get("fields") or common.get(field["type"].removeprefix("[]"))
    return compact if inner is None else compact | {"fields": [_field(it, common) for it in inner]}


def as_text(all_schemas: list[dict[str, Any]]) -> str:
    """Return the file of package data: a line for each schema."""
    return "[\n" + ",\n".join(json.dumps(schema, separators=(",", ":")) for schema in all_schemas) + "\n]\n"


if __name__ == "__main__":
    Path(schemas.__file__).with_name(schemas.SCHEMAS).write_text(as_text(of_kafka()))
