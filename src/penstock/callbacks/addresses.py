"""The addresses to which callbacks may be posted.

A callback url is text that a submitter chose, and the request comes from inside: without care it is a way to reach what
only this machine can reach. So a name is resolved once, every address it has must be public, and the connection goes to
one of these very addresses: a name server that answers differently a moment later is not asked again.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote, urlsplit

from penstock.backends.contract.callback_urls import DEFAULT_PORTS, split_callback_url
from penstock.errors import PenstockError, invalid, shown

__all__ = ["Policy", "RefusedUrlError", "Resolver", "Target", "check_policy", "lane_of", "resolve"]

Policy = Literal["public", "any", "off"]
Resolver = Callable[..., Sequence[tuple[Any, Any, Any, Any, tuple[Any, ...]]]]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_FIRST_FREE_PORT: Final = 1024  # below lie services that speak other protocols, mail for one
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
# What `is_global` of some Python versions takes for public.
_NEVER: Final = tuple(
    map(
        ipaddress.ip_network,
        ("192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15", "100.64.0.0/10", "0.0.0.0/8", "64:ff9b:1::/48"),
    )
)


class RefusedUrlError(PenstockError):
    """The policy does not let a callback go there; trying again would not help."""

    code = "refused_url"


class Target(NamedTuple):
    """A parsed url, and the address that its host resolved to."""

    scheme: str
    host: str  # as the request names it; an IPv6 address without brackets
    port: int
    address: str
    path: str  # with the query

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def check_policy(value: object) -> Policy:
    """Return one of the three policies."""
    if value in {"public", "any", "off"}:
        return value
    raise invalid("callbacks", '"public", "any" or "off"', value)


def lane_of(url: str) -> str:
    """Return the lane of a url, which deliveries to one host and port share; any text has one."""
    try:
        parts = urlsplit(url)
        return f"{parts.hostname or ''}:{parts.port or ''}"[:512] or ":"
    except ValueError:
        return ":"


def resolve(url: str, policy: Policy, resolver: Resolver = socket.getaddrinfo) -> Target:
    """Return the target of a url, resolved.

    Raises:
        RefusedUrlError: the policy does not allow it.
        OSError: the name cannot be resolved now.
    """
    scheme, host, port, path = _parts(url, policy)
    try:
        found = resolver(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise RefusedUrlError(f"the host {shown(host)} is no name: {error}") from None
    # The order is that of the resolver; without the zone of a link-local address, which is never public.
    addresses = list(dict.fromkeys(str(each[4][0]).partition("%")[0] for each in found))
    if not addresses:
        raise OSError(f"the host {host} has no address")
    if policy == "public":
        for each in addresses:
            if not is_public(ipaddress.ip_address(each)):
                raise RefusedUrlError(f'{each} is not a public address: callbacks="any" would allow it')
    return Target(scheme, host, port, addresses[0], path)


def is_public(address: Address) -> bool:
    """Whether an address belongs to the public internet, also where it wraps another one."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = _wrapped(address)
        if inner is not None and not is_public(inner):
            return False
        if address.ipv4_mapped is not None:
            return inner is not None
        if address.is_site_local:
            return False
    is_special = address.is_multicast or address.is_reserved or address.is_unspecified or address.is_loopback
    is_hidden = address.is_private or address.is_link_local or not address.is_global
    listed = any(network.version == address.version and address in network for network in _NEVER)
    if isinstance(address, ipaddress.IPv6Address) and address in _NAT64:
        return not listed  # its inner address is public, which is what counts
    return not (is_special or is_hidden or listed)


def _wrapped(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def _parts(url: str, policy: Policy) -> tuple[str, str, int, str]:
    """Return scheme, host, port and path of a url that may be called at all."""
    try:
        parts = split_callback_url(url)
    except ValueError as error:
        raise RefusedUrlError(f"the url cannot be called: {error}") from None
    port = parts.port
    port = DEFAULT_PORTS[parts.scheme] if port is None else port
    is_usual = port in DEFAULT_PORTS.values() or port >= _FIRST_FREE_PORT
    if policy == "public" and not is_usual:
        raise RefusedUrlError(f"port {port} is neither 80, 443 nor one from {_FIRST_FREE_PORT} on")
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
    if parts.query:
        path += "?" + quote(parts.query, safe="/?%:@!$&'()*+,;=~-._[]")
    return parts.scheme, _ascii(parts.hostname or ""), port, path


def _ascii(host: str) -> str:
    if host.isascii():
        return host
    try:
        return host.encode("idna").decode()
    except UnicodeError as error:
        raise RefusedUrlError(f"the host {shown(host)} is no name: {error}") from None
