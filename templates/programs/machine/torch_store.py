"""Make the store by which torch's processes meet, and print why that fails; nothing where it works.

Torch asks for libuv by default, and says there that it has none. Nobody else can reach the store.
"""

import functools
import socket

try:
    from torch.distributed import TCPStore
except ImportError:
    raise SystemExit from None
own = socket.create_server(("127.0.0.1", 0))
store = functools.partial(TCPStore, "127.0.0.1", own.getsockname()[1], is_master=True)
try:
    store(wait_for_workers=False, master_listen_fd=own.fileno())
    own.detach()
except RuntimeError as error:
    print(error)
