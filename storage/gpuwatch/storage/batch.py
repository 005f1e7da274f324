"""One batch of rows in one transaction.

Rules: all or nothing, except for rows that can never be written (they do not fit their table): those are named and left
out, so that one of them cannot hold up the others for ever.
"""

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from gpuwatch.storage import codec
from gpuwatch.storage.tables import TABLES, Row

Flat = dict[str, Any]
"""A row as SQLite takes it."""

_MISFITS: Final = (
    sqlite3.IntegrityError,  # NULL where a value must be, or another type than the STRICT table takes
    sqlite3.ProgrammingError,  # a type that SQLite cannot bind
    sqlite3.DataError,  # a text or blob that is too big
    OverflowError,  # an integer beyond 64 bits
)
_PRUNE: Final = """
DELETE FROM snapshots WHERE id IN (
    SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY "trigger" ORDER BY id DESC) AS place FROM snapshots)
    WHERE place > ?
)
"""


def write(
    connection: sqlite3.Connection, records: Sequence[Row], *, keep_snapshots: int | None = None
) -> dict[int, Exception]:
    """Write ``records`` in their order; give those that can never be written, by their place.

    With ``keep_snapshots``, the oldest snapshots beyond that many per trigger go in the same transaction. Raises
    `sqlite3.Error` for everything that another try may heal; nothing is written then.
    """
    rejected: dict[int, Exception] = {}
    rows: dict[str, list[tuple[int, Flat]]] = {}
    for place, record in enumerate(records):
        try:
            rows.setdefault(TABLES[type(record)].insert, []).append((place, codec.row(record)))
        except Exception as misfit:  # noqa: BLE001 - whatever nested data from outside does, it is this row's fault only
            rejected[place] = misfit
    connection.execute("BEGIN IMMEDIATE")
    try:
        for insert, placed in rows.items():
            rejected.update(_insert(connection, insert, placed))
        if keep_snapshots is not None:
            connection.execute(_PRUNE, (keep_snapshots,))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk may have rolled back already
            connection.execute("ROLLBACK")
        raise
    return rejected


def _insert(connection: sqlite3.Connection, insert: str, placed: Sequence[tuple[int, Flat]]) -> dict[int, Exception]:
    rejected: dict[int, Exception] = {}
    connection.execute("SAVEPOINT rows")
    try:
        connection.executemany(insert, [row for _, row in placed])
    except _MISFITS:  # one of them does not fit: find it, write the others
        connection.execute("ROLLBACK TO rows")
        for place, row in placed:
            try:
                connection.execute(insert, row)
            except _MISFITS as misfit:
                rejected[place] = misfit
    connection.execute("RELEASE rows")
    return rejected
