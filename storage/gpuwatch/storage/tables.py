"""Which record lives in which table, and the statements for it.

Rules: standard library only, so that the console can read a database without a migration tool. A table's columns are
the record's fields in their order (`codec.fields`); `schema` writes them out as history, and a test holds the two
together.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gpuwatch.storage import codec
from gpuwatch.storage.records import Event, KnobChange, OomSnapshot, RequestRecord, Run, Sample

Row = RequestRecord | Sample | OomSnapshot | KnobChange | Event | Run
"""What the database holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table. ``key`` is its primary key, ``None`` where rows have none.

    ``kept`` rows are never dropped while the service lives; the others are counted as dropped when the queue is full.
    """

    name: str
    kind: type[Row]
    key: str | None
    kept: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """The table's columns in their order."""
        return codec.fields(self.kind)

    @property
    def insert(self) -> str:
        """Give the statement that writes one row; where there is a key, a row that exists is replaced in place."""
        names = ", ".join(f'"{column}"' for column in self.columns)
        marks = ", ".join(f":{column}" for column in self.columns)
        sql = f'INSERT INTO "{self.name}" ({names}) VALUES ({marks})'  # noqa: S608 - names are our own fields
        if self.key is None:
            return sql
        updates = ", ".join(f'"{column}" = excluded."{column}"' for column in self.columns if column != self.key)
        return f'{sql} ON CONFLICT ("{self.key}") DO UPDATE SET {updates}'


TABLES: Final[Mapping[type[Row], Table]] = {
    table.kind: table
    for table in (
        Table(name="requests", kind=RequestRecord, key="seq", kept=False),
        Table(name="samples", kind=Sample, key=None, kept=False),
        Table(name="snapshots", kind=OomSnapshot, key="id", kept=True),
        Table(name="knob_changes", kind=KnobChange, key="version", kept=True),
        Table(name="events", kind=Event, key="id", kept=True),
        Table(name="runs", kind=Run, key="id", kept=True),
    )
}
