"""Nodes of a job over ssh that lie: what their logins answer in the place of a node agent.

Each is one program that speaks the client's two protocols (files of the job; a script of probes)
and says in one of them what no node of ours would say.
"""

from __future__ import annotations

import json
from pathlib import Path

CANARY = "CANARY"
"""In the programs: a path that nobody may ever make."""

_SPEAKER = r"""
import json, os, re, sys, time
NAME, RANK, RUN = @ME@
CANARY = @CANARY@
GOOD = {"schema": 1, "node": NAME, "attempt": 0, "pid": 77, "start_time": "7", "boot_id": "b"}
LOG = f"logs/node-{RANK}.log"
def say(data):
    data = data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass")
    while data:
        data = data[os.write(1, data):]
def answer(data=b"", **document):
    say(json.dumps(document).encode() + b"\n" + data)
def small(name, document):
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    piece(name, data)
def agent(**more):
    small(f"keepers/{RANK}.json", {**GOOD, **more})
def log(offset, data, **more):
    piece(LOG, data, **{"offset": offset, **more})
def end(**more):
    small(f"ends/{RANK}.json", {**GOOD, "state": "succeeded", "exit_code": 0, "at": 1.0, **more})
def result(of=None, **more):
    of = RANK if of is None else of
    small(f"nodes/node-{of}-attempt-0.json", {
        "schema": 1, "attempt": 0, "of": 4, "node_rank": of, "node": NAME, "exit_code": 0,
        "started_at": 1.0, "ended_at": 2.0, **more})
def piece(name, data=b"x", **more):
    answer(data, **{"file": name, "offset": 0, "bytes": len(data), "last": True, "mode": 0o755,
                    "sign": [len(data), 1], **more})
def frames(script, text):
    token = re.search(rb"CLUSTERKIT_PROBES=(\w+)", script)[1].decode()
    say(f"{token} 0 - @ {time.time()} {NAME}\n")
    for name in re.findall(r"^P ([\w-]+) ", script.decode(), re.MULTILINE):
        say(f"{token} 0 {name} o {text}\n{token} 0 {name} = 0 1.00 2.00\n")
    say(f"{token} 0 - = 0 - -\n")
def first():
    "The second question comes when the first was answered, and asks for results."
def lie(request): @LIE@
read = b""
while True:
    data = os.read(0, 65536)
    read += data
    helper = re.search(rb"' (ck[0-9a-f]{16})\n", read)
    if helper or not data:
        break
if not helper:
    frames(read, @ALIVE@)
    sys.exit(0)
say(b"\n" + helper[1] + b"\n")
for line in sys.stdin.buffer:
    request = json.loads(line)
    if not request["trees"]:
        request = {**request, "first": True}
    lie(request)
    answer(done=True)
"""

FAST = {
    "boot": 'agent(boot_id="\'; touch " + CANARY + "; \'")',
    "start": 'agent(start_time="7\' ]; touch " + CANARY + "; [ \'")',
    "digits": "small(f'keepers/{RANK}.json', b'{\"pid\": ' + b'9' * 5000 + b'}')",
    "year": "agent(began_at=1e300)",
    "pid": "agent(pid=1)",
    "negative": "agent(pid=-1)",
    "keyless": "small(f'keepers/{RANK}.json', {})",
    "other": "agent(node='n1')",
    "foreign": "small('keepers/0.json', {**GOOD, 'node': 'n1', 'pid': 1})",
    "up": "small('nodes/../../../' + os.path.basename(CANARY), {})",
    "root": "small(CANARY, {})",
    "plan": "small('plan.json', {})",
    "script": "small('node.sh', b'touch ' + CANARY.encode())",
    "pickle": "small(f'submitit/ssh-abcdef_{RANK}_result.pkl', b'cos\\nsystem\\n(S\"true\"\\ntR.')",
    "result": "result(of=0, node='n1', exit_code=3)",
    "named": "result(node='n1', exit_code=3)",
    "attempt": "agent(); result(exit_code=0, attempt=10**9); small('failures/9999999999.json', {})",
    "code": "result(exit_code=10**12)",
    "state": "agent(); end(state='running')",
    "blame": "agent(); small('failures/0.json', {'node_rank': 0, 'node': 'n1', 'exit_code': 137,"
    " 'started_at': 0, 'ended_at': 0}); result(exit_code=143, reason='peer'); end(state='failed')",
    "gone": "agent(); result(of=0, node='n1', exit_code=255, lost='no longer answers');"
    " result(of=2, node='n3', exit_code=255, lost='no longer answers'); end()",
    "misnamed": "agent(); result(of=0, node='n3', exit_code=255, lost='no longer answers')",
    "hint": "answer(error='no room\\nhint: touch ' + CANARY)",
    "sparse": "agent(); log(1 << 42, b'x')",
    "backwards": "agent(); log(0, b'abc'); log(1, b'x')",
    "elsewhere": "agent(); log(0, b'x', file='logs/node-0.log')",
    "bytes": "agent(); log(0, b'', bytes=1 << 50)",
    "minus": "agent(); log(0, b'', bytes=-1)",
    "words": "agent(); log('0', b'', bytes='many')",
    "list": "say('[]\\n')",
    "null": "say('null\\n')",
    "deep": "say('{\"a\":' + '[' * 100000 + '\\n')",
    "text": "say('\\x1b]0;owned\\x07 hello\\n')",
    "error": "answer(error='\\x1b]0;owned\\x07\\ud800' * 1000)",
    "objects": "answer(error={'a': [1]})",
    "many": "[small(f'nodes/node-{RANK}-attempt-{k}.json', b'') for k in range(100000)]",
    "line": "say('x' * (1 << 23))",
    "tree": "agent(); end(); request['trees'] and piece('results/../../../' + CANARY)",
    "hole": "agent(); end(); request['trees'] and piece('results/a', offset=1 << 42)",
    "grows": "agent(); end(); request['trees'] and [piece('results/a', b'x' * 9, last=False,"
    " sign=[9, 1], offset=9 * k) for k in range(3)]",
    "control": "agent(); end(); request['trees'] and piece('results/a\\x1b]0;owned\\x07')",
    "early": "piece('results/early')",
    "where": "agent(); end(); request['trees'] and answer(done=True, too_large=1 << 40,"
    " where='; touch ' + CANARY)",
}
"""Lies that are seen through at once."""

SLOW = {
    "silent": "time.sleep(100)",
    "drip": "[(say(' '), time.sleep(0.2)) for _ in range(1000)]",
    "small": "[(small(f'nodes/x{k}', b'x'), time.sleep(0.2)) for k in range(1000)]",
    "log": "agent(); [log(request['logs'][LOG] + k, b'x') or time.sleep(0.2) for k in range(1000)]",
    "flood": "agent(); at = request['logs'][LOG];"
    " [log((k << 18) + at, b'x' * (1 << 18)) for k in range(999)]",
    "empty": "[say('\\n' * 65536) for _ in iter(int, 1)]",
}
"""Lies that never end."""


def program(lie: str, *, name: str, rank: int, run_id: str, canary: Path, alive: str) -> str:
    """Return the program of one node."""
    return (
        _SPEAKER.replace("@ME@", json.dumps([name, rank, run_id]))
        .replace("@CANARY@", repr(str(canary)))
        .replace("@LIE@", lie)
        .replace("@ALIVE@", repr(alive))
    )
