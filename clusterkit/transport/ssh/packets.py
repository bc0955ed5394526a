"""What comes from an SSH server before it is trusted: packets and banners of bounded size."""

from __future__ import annotations

import struct

import paramiko
from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm

from clusterkit.core.untrusted import NONSENSE

BROKEN = (OSError, EOFError, paramiko.SSHException)
"""A connection that ended, or was ended."""
GIBBERISH = (struct.error, InvalidSignature, InvalidTag, UnsupportedAlgorithm, *NONSENSE)
"""What paramiko raises where a server speaks no SSH, or means harm."""
_LARGEST_PACKET = 256 << 10
"""Bytes; as in OpenSSH (PACKET_MAX_SIZE). Nobody has to take more than 35,000 (RFC 4253, 6.1)."""
_LONGEST_BANNER = 16 << 10
"""Bytes of all lines before the handshake; RFC 4253, 4.2, has 255 in each."""


class Packets(paramiko.Packetizer):  # type: ignore[misc]
    """Reads packets of the sizes that SSH has: paramiko believes every length, up to 4 GiB."""

    _left = _LONGEST_BANNER

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:
        """Return so many bytes of a packet; see paramiko."""
        if n > _LARGEST_PACKET:
            raise paramiko.SSHException(f"a packet of {n} bytes")
        data: bytes = super().read_all(n, check_rekey)
        return data

    def _read_timeout(self, timeout: float) -> bytes:
        data: bytes = super()._read_timeout(timeout)
        self._left -= len(data)
        if self._left < 0:
            raise paramiko.SSHException("no end of what it says before the handshake")
        return data
