"""`estimate`: which strategy fits a model on some GPUs."""

from __future__ import annotations

import html
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clusterkit.api.arguments import takes
from clusterkit.core.errors import UserError
from clusterkit.core.files import versioned
from clusterkit.estimate.advice.recommend import Answer
from clusterkit.estimate.query.answer import answer
from clusterkit.estimate.query.document import document
from clusterkit.estimate.query.mixed import is_mixed
from clusterkit.estimate.query.options import EstimateOptions

_COLUMNS = ("strategy", "fits", "GB per GPU", "tokens/s per GPU", "MFU")


@dataclass(frozen=True, slots=True)
class Estimate:
    """What fits, and how fast it is."""

    answer: Answer

    @property
    def document(self) -> dict[str, Any]:
        """What `clusterkit estimate --json` prints; GB are 10^9 bytes."""
        return versioned(document(self.answer))

    @property
    def recommended(self) -> str | None:
        """The name of the strategy to take; None where nothing fits."""
        chosen = self.answer.chosen
        return chosen.name if chosen else None

    @property
    def why(self) -> str:
        """Why that one, or why none."""
        return self.answer.why

    @property
    def strategies(self) -> Sequence[dict[str, Any]]:
        """Each strategy as the document has it."""
        found: Sequence[dict[str, Any]] = self.document["strategies"]
        return found

    def __repr__(self) -> str:
        """Show the advice."""
        return f"<estimate: {self.recommended or 'nothing fits'}: {self.why}>"

    def _repr_html_(self) -> str:
        rows = [f"<tr>{''.join(f'<th>{name}</th>' for name in _COLUMNS)}</tr>"]
        for one in self.strategies:
            cells = (
                html.escape(one["strategy"]),
                "yes" if one["fits"] else "no",
                f"{one['memory_gb']['total']:,.1f}",
                f"{one['tokens_per_s_per_gpu']:,.0f}" if one["fits"] else "",
                f"{one['mfu']:.0%}" if one["fits"] else "",
            )
            rows.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
        title = html.escape(f"{self.recommended or 'nothing fits'}: {self.why}")
        return f"<p><b>{title}</b></p><table>{''.join(rows)}</table>"


@takes(EstimateOptions)
def estimate(options: EstimateOptions) -> Estimate:
    """Tell which strategy fits a model on some GPUs, how fast it trains, and why.

    Arguments are the flags of `clusterkit estimate`; `explain` and `scale` add to the document.

    Raises:
        UserError: arguments are missing or make no sense; all of them at once. Two kinds of GPUs
            are divided on the command line alone.
    """
    if is_mixed(options.gpu):
        message = f"gpu={options.gpu!r} names two kinds, which only the command line divides"
        raise UserError(
            message, hint=f"clusterkit estimate --gpu {shlex.quote(options.gpu)} --json"
        )
    return Estimate(answer(options))
