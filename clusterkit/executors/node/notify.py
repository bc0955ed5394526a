"""Tell people, once a job, that it has ended: by mail, a webhook, or a command of theirs.

Whoever concludes the job does (`ending.py`), so that no client has to look on; whoever notices that
an attempt hangs tells that (`hang.py`), once an attempt. All ways are gone at
the same time, in bounded time, and what becomes of them is told in the log of the node and in
`notified.json`; nothing else depends on it. Addresses that are secrets are known by a name, and
appear in neither. No line of the output is sent: it may hold anything.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from clusterkit.core import files, ownership
from clusterkit.core.commands import filled_in, run_command
from clusterkit.core.errors import UserError
from clusterkit.core.model import JobState, OnHang
from clusterkit.core.notification import Way, is_url, parse_way
from clusterkit.core.records import texts_of
from clusterkit.core.timing import scaled
from clusterkit.core.version import __version__
from clusterkit.executors.node.failure import cut
from clusterkit.executors.run.runfolder import SCHEMA, RunFolder, Submission

_ALL_S = 20.0
"""How long everything may take: Slurm kills a job that it has told to end after 30 s (KillWait)."""
_TRY_S = 5.0
_AGAIN_AFTER_S = (scaled(1.0), scaled(3.0))
_LONGEST = 300
"""Characters of a reason, or of what went wrong."""
_SUBJECT = 200
_SECRET_MOST = 8192
_ELSEWHERE = "/usr/sbin:/usr/lib:/usr/local/sbin"
"""Where sendmail is, beside PATH."""
_NO_MAILER = "{} has no sendmail"
_TRY_LATER = 75
"""Exit code by which a mailer asks for another try (EX_TEMPFAIL)."""
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers after which another try may do better."""
_FAILURES = frozenset({JobState.FAILED, JobState.TIMEOUT, JobState.PREEMPTED})
_SENT = "sent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a job has ended, or how it hangs, as the node knows it that concludes or notices it."""

    state: JobState
    """`running` where it hangs."""
    reason: str | None
    exit_code: int | None
    attempt: int
    node: str


def ways_of(run: RunFolder, state: JobState, *, acts: bool = False) -> tuple[Way, ...]:
    """Return how to tell of a job in this state; none of a plan that is somebody else's.

    Where something is done about a hang (`acts`), another end or attempt tells of it in any case.
    """
    plan = files.read_json(run.plan, own=True) or {}
    texts = [*texts_of(plan, "on_end" if state.final else "on_hang_tell")]
    if state in _FAILURES or not (state.final or texts or acts):
        texts += texts_of(plan, "on_failure")
    ways = []
    for text in dict.fromkeys(texts):
        with suppress(ValueError):  # another release wrote it
            ways.append(parse_way(text))
    return tuple(ways)


def notify(run: RunFolder, submission: Submission, ending: Ending, log: Path) -> None:
    """Tell of the end of a job, or that it hangs, unless somebody has; how it goes, in `log`."""
    ways = ways_of(run, ending.state, acts=submission.on_hang is not OnHang.REPORT)
    if not ways:
        return
    about = _about(run, submission, ending)
    place = run.notified if ending.state.final else run.notified_of_hang(ending.attempt)
    with suppress(UserError):  # the folder is gone, or full: its other parts tell that
        claim = {"schema": SCHEMA, "by": ending.node, "state": ending.state}
        if files.create_text(place, json.dumps(claim)):
            told = _send_all(ways, about)
            for line in told:
                files.append_line(log, f"clusterkit: {ending.node}: {line}")
            files.write_json(place, {**claim, "told": told})


def _about(run: RunFolder, submission: Submission, ending: Ending) -> dict[str, Any]:
    """Return what a webhook is posted as JSON."""
    reason = " ".join((ending.reason or "").split())
    event = "failure" if ending.state in _FAILURES else "end"
    return {
        "schema": SCHEMA,
        "event": event if ending.state.final else "hang",
        "job_id": submission.job_id or run.key,
        "run_id": run.run_id,
        "name": submission.name,
        "cluster": submission.cluster,
        "state": ending.state.value,
        "exit_code": ending.exit_code,
        "reason": cut(reason, _LONGEST) or None,
        "attempt": ending.attempt,
        "node": ending.node,
        "submitted_at": submission.submitted_at,
        "ended_at": time.time() if ending.state.final else None,
        "run_dir": str(run.path),
    }


def _send_all(ways: Sequence[Way], about: Mapping[str, Any]) -> list[str]:
    """Tell it by all ways at once; return in a line for each how that went."""
    ended: dict[Way, str] = {}
    until = time.monotonic() + _ALL_S

    def send(way: Way) -> None:
        ended[way] = _send(way, about, until)

    # Threads, as the time of a socket is that of each piece, and an answer may come in drips.
    threads = [threading.Thread(target=send, args=(way,), daemon=True) for way in ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return [f"{way}: {ended.get(way, f'no answer in {_ALL_S:.0f} s')}" for way in ways]


@dataclass(frozen=True, slots=True)
class _Trouble:
    """Why it could not be told, and whether another try may do better."""

    why: str
    passing: bool = False


def _send(way: Way, about: Mapping[str, Any], until: float) -> str:
    """Tell it, again where that may help; return how that went."""
    trouble = _SENDERS[way.kind](way, about)
    tries = 1
    for pause_s in _AGAIN_AFTER_S:
        if trouble is None or not trouble.passing or time.monotonic() + pause_s >= until:
            break
        time.sleep(pause_s)
        trouble = _SENDERS[way.kind](way, about)
        tries += 1
    after = f" ({tries} tries)" if tries > 1 else ""
    return f"failed: {cut(trouble.why, _LONGEST)}{after}" if trouble is not None else _SENT


def headline(about: Mapping[str, Any]) -> str:
    """Return the end of a job in a line."""
    why = f": {about['reason']}" if about["reason"] else ""
    job = f"{about['name']} ({about['job_id']} on {about['cluster']})"
    return f"{job}: {about['state']}{why}"


def _body(about: Mapping[str, Any]) -> str:
    look = "status" if about["event"] == "end" else "diagnose"
    return f"{headline(about)}\n{about['run_dir']}\nclusterkit {look} {about['job_id']}\n"


def obstacle(way: Way, node: str) -> str | None:
    """Return why this machine, called `node`, cannot tell it so; None where nothing is known."""
    if way.kind == "mail":
        return None if _sendmail() else _NO_MAILER.format(node)
    address = _address(way, node) if way.kind in {"slack", "webhook"} else None
    return address.why if isinstance(address, _Trouble) else None


def _sendmail() -> str | None:
    return shutil.which("sendmail", path=f"{os.environ.get('PATH', os.defpath)}:{_ELSEWHERE}")


def _mail(way: Way, about: Mapping[str, Any]) -> _Trouble | None:
    program = _sendmail()
    if program is None:
        return _Trouble(_NO_MAILER.format(about["node"]))
    # A subject beyond ASCII would have to be encoded, and a line of a mail has 998 bytes at most.
    subject = cut(headline(about), _SUBJECT).encode("ascii", "replace").decode()
    head = (
        f"To: {way.to[0]}",
        f"Subject: {subject}",
        "Auto-Submitted: auto-generated",
        "MIME-Version: 1.0",
        "Content-Type: text/plain; charset=utf-8",
        "Content-Transfer-Encoding: 8bit",
    )
    text = "\n".join((*head, "", _body(about))).encode(errors="replace")
    answer = run_command([program, "-i", "--", way.to[0]], timeout_s=_ALL_S, given=text)
    return None if answer.ok else _Trouble(answer.complaint, answer.code == _TRY_LATER)


def _run(way: Way, about: Mapping[str, Any]) -> _Trouble | None:
    values = {key: "" if value is None else str(value) for key, value in about.items()}
    answer = run_command(filled_in(way.to, values), timeout_s=_ALL_S)
    return None if answer.ok else _Trouble(answer.complaint)


def _webhook(
    way: Way, about: Mapping[str, Any], *, shape: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> _Trouble | None:
    address = _address(way, about["node"])
    if isinstance(address, _Trouble):
        return address
    return _post(address, json.dumps(shape(about)).encode())


def _address(way: Way, node: str) -> str | _Trouble:
    name = way.to[0]
    try:
        url = name if is_url(name) else _read_secret(name)
    except OSError as error:
        return _Trouble(f"cannot read {name}: {error.strerror}")
    except UserError as error:
        return _Trouble(error.problems[0].message)
    if url is None:
        return _Trouble(f"{name} is not set on {node}")
    if not is_url(url):
        return _Trouble(f"{name} holds no address that begins with http:// or https://")
    return url


def _read_secret(name: str) -> str | None:
    """Return the address in a variable, or in a file of one's own; None where neither is there."""
    if not name.startswith(("/", "~")):
        return os.environ.get(name)
    path = Path(name).expanduser()
    lines = ownership.read_own(path, use="post to an address in it", most=_SECRET_MOST).split()
    return lines[0].decode("ascii", "replace") if lines else ""


def _post(url: str, data: bytes) -> _Trouble | None:
    """Post JSON; the answer is never read beyond its head, and no redirect followed.

    What goes wrong is told without the address.
    """
    import http.client  # noqa: PLC0415 - load slowly, and only here
    import ssl  # noqa: PLC0415
    import urllib.error  # noqa: PLC0415
    import urllib.request  # noqa: PLC0415

    class NotElsewhere(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any, **__: Any) -> None:
            """Follow nothing."""

    headers = {"Content-Type": "application/json", "User-Agent": f"clusterkit/{__version__}"}
    asked = urllib.request.Request(url, data, headers)  # noqa: S310 - http or https (is_url)
    try:
        urllib.request.build_opener(NotElsewhere).open(asked, timeout=_TRY_S).close()
    except urllib.error.HTTPError as error:
        error.close()
        elsewhere = ", and is not followed" if error.code in _ELSEWHERE_CODES else ""
        return _Trouble(f"it answered {error.code}{elsewhere}", error.code in _PASSING)
    except urllib.error.URLError as error:
        why = error.reason
        if isinstance(why, ssl.SSLCertVerificationError):
            return _Trouble("its certificate is not trusted")
        return _Trouble(_in_words(why), passing=True)
    except TimeoutError as error:
        return _Trouble(_in_words(error), passing=True)
    except (OSError, ValueError, http.client.HTTPException) as error:
        return _Trouble(_in_words(error), passing=isinstance(error, OSError))
    return None


_ELSEWHERE_CODES = frozenset({301, 302, 303, 307, 308})


def _in_words(error: object) -> str:
    """Return what went wrong, in words of the system: those of a library may hold the address."""
    if isinstance(error, TimeoutError):
        return f"no answer in {_TRY_S:.0f} s"
    if isinstance(error, OSError) and error.strerror:
        return re.sub(r"^\[.*?\] ", "", error.strerror)
    return f"no answer by the rules of HTTP ({type(error).__name__})"


def _plain(about: Mapping[str, Any]) -> Mapping[str, Any]:
    return about


def _for_slack(about: Mapping[str, Any]) -> Mapping[str, Any]:
    text = _body(about).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {"text": text}


_SENDERS: Mapping[str, Callable[[Way, Mapping[str, Any]], _Trouble | None]] = {
    "mail": _mail,
    "run": _run,
    "webhook": partial(_webhook, shape=_plain),
    "slack": partial(_webhook, shape=_for_slack),
}
