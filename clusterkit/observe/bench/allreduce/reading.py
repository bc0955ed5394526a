"""Read a result that was measured before: our document, or what nccl-tests printed."""

from __future__ import annotations

from typing import BinaryIO

from clusterkit.core import files
from clusterkit.core.errors import Position, UserError
from clusterkit.observe.bench.allreduce.document import read_document
from clusterkit.observe.bench.allreduce.nccl_output import read_nccl_tests
from clusterkit.observe.bench.allreduce.result import Result
from clusterkit.transport.probe import Unparsed

_MOST_BYTES = 16 << 20
"""A sweep over all sizes on thousands of ranks prints less than a megabyte."""
_HINT = "all_reduce_perf ... | clusterkit bench allreduce --from -"


def read_result(stream: BinaryIO, *, source: str) -> Result:
    """Return the result in `stream`; `source` names it in errors.

    Raises:
        UserError: it is neither output of nccl-tests nor a document of ours, or too large.
    """
    data = stream.read(_MOST_BYTES + 1)
    where = Position(source=source)
    if len(data) > _MOST_BYTES:
        message = f"more than {_MOST_BYTES >> 20} MiB: this is no output of nccl-tests"
        raise UserError(message, hint=_HINT, position=where)
    if b"\0" in data:
        message = "a binary file: this is no output of nccl-tests"
        raise UserError(message, hint=_HINT, position=where)
    document = files.parse_json(data) if data.lstrip().startswith(b"{") else None
    try:
        if document is not None:
            return read_document(document)
        return read_nccl_tests(data.decode("utf-8", errors="replace"))
    except Unparsed as error:
        raise UserError(f"cannot read this: {error}", hint=_HINT, position=where) from error
