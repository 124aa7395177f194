"""Where callbacks may go: RELIABILITY section 4, the rows on SSRF."""

import ipaddress
import socket

import pytest

from penstock.callbacks.addresses import RefusedUrlError, check_policy, is_public, lane_of, resolve
from penstock.errors import InvalidArgumentError

PUBLIC = "93.184.216.34"


def answers(*addresses):
    def resolver(host, port, **_):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    return resolver


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.1.2.3", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1",
        "169.254.169.254", "100.64.0.1", "192.0.0.8", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1",
        "224.0.0.1", "240.0.0.1", "255.255.255.255",
        "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "fec0::1", "ff02::1", "2001:db8::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "2002:7f00:1::", "2002:a00:1::",
        "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:0:4136:e378:8000:63bf:80ff:fffe", "100::1",
    ],
)  # fmt: skip
def test_what_is_not_public_is_refused(address):
    with pytest.raises(RefusedUrlError, match="not a public address"):
        resolve("https://example.com/", "public", answers(address))
    with pytest.raises(RefusedUrlError, match="not a public address"):
        resolve("https://example.com/", "public", answers(PUBLIC, address))
    assert resolve("https://example.com/", "any", answers(address)).address == address.partition("%")[0]


@pytest.mark.parametrize(
    "address", [PUBLIC, "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_what_is_public_is_allowed(address):
    assert is_public(ipaddress.ip_address(address))
    assert resolve("https://example.com/", "public", answers(address)).address == address


@pytest.mark.parametrize(
    "host",
    ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0"],
)
def test_loopback_in_disguise_is_refused(host):
    """As the system's own resolver reads it."""
    with pytest.raises((RefusedUrlError, OSError)):
        resolve(f"http://{host}/", "public")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/", "file:///etc/passwd", "gopher://example.com/", "//example.com/", "example.com", "",
        "javascript:alert(1)", "http://", "http:///path", "http://user@example.com/", "http://a:b@example.com/",
        "http://@example.com/", "http://example.com:0/", "http://example.com:99999/", "http://example.com:port/",
        "http://[::1/", "http://exa mple.com/", "http://example.com/\r\nX: y", "http://example.com\\@evil/",
        "http://example.com/\t", "http://\x00/", "http://example.com:22/", "http://example.com:25/",
        "http://" + "a" * 64 + "é.com/",
    ],
)  # fmt: skip
def test_what_is_no_place_to_call_is_refused(url):
    with pytest.raises(RefusedUrlError):
        resolve(url, "public", answers(PUBLIC))


@pytest.mark.parametrize(
    ("url", "authority", "path"),
    [
        ("http://example.com", "example.com", "/"),
        ("https://example.com:443/a?b=c#d", "example.com", "/a?b=c"),
        ("https://EXAMPLE.com:8443/a%20b", "example.com:8443", "/a%20b"),
        ("http://example.com:80/ü?q=ü", "example.com", "/%C3%BC?q=%C3%BC"),
        ("http://bücher.example/", "xn--bcher-kva.example", "/"),
        ("http://[2606:4700::1111]:8080/", "[2606:4700::1111]:8080", "/"),
    ],
)
def test_a_url_is_taken_apart(url, authority, path):
    target = resolve(url, "public", answers(PUBLIC))
    assert (target.authority, target.path, target.address) == (authority, path, PUBLIC)


def test_any_allows_other_ports_but_no_other_scheme():
    assert resolve("http://example.com:25/", "any", answers("10.0.0.1")).port == 25
    for url in ("ftp://example.com/", "http://user@example.com/"):
        with pytest.raises(RefusedUrlError):
            resolve(url, "any", answers("10.0.0.1"))


def test_a_name_that_cannot_be_resolved_may_be_tried_again():
    """Failure to resolve is no permission."""

    def fail(*_, **__):
        raise socket.gaierror(socket.EAI_AGAIN, "later")

    for resolver in (fail, answers()):
        with pytest.raises(OSError):
            resolve("http://example.com/", "public", resolver)


def test_a_lane_is_a_host_and_port():
    assert (
        lane_of("https://example.com/a") == lane_of("https://EXAMPLE.com/b") != lane_of("https://other.com/")
    )
    assert lane_of("https://example.com:1/") != lane_of("https://example.com:2/")
    assert lane_of("http://[::1") == lane_of("http://example.com:port/") == ":"


@pytest.mark.parametrize("policy", ["", "none", None, True, "PUBLIC"])
def test_an_unknown_policy_is_refused(policy):
    with pytest.raises(InvalidArgumentError, match="public"):
        check_policy(policy)
