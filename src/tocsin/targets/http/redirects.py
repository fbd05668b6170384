"""Follows redirects: the next request, and which headers go along with it."""

from __future__ import annotations

from msgspec.structs import replace
from yarl import URL

from tocsin.model.delivery import DeliveryFailed
from tocsin.model.http import LONGEST_URL, Http
from tocsin.targets.http.answer import HttpAnswer, briefly, is_success, shown
from tocsin.targets.http.request import SIGNED, Request, without

# With these statuses the same request is sent again; with the others a GET fetches the answer from elsewhere.
_SAME_REQUEST = (307, 308)
_ELSEWHERE = (301, 302, 303)
# Headers that are dropped together with the body.
_ABOUT_THE_BODY = frozenset(["content-type", "content-encoding"]) | SIGNED


def is_redirect(target: Http, answer: HttpAnswer) -> bool:
    """Whether this answer is a redirect to follow."""
    redirect = answer.status in _SAME_REQUEST or answer.status in _ELSEWHERE
    return redirect and target.redirects > 0 and answer.location is not None and not is_success(target, answer.status)


def next_request(target: Http, request: Request, answer: HttpAnswer) -> Request:
    """The next request. Headers for the receiver alone are not sent to another origin."""
    there = _next_url(target, request, answer.location or "")
    here = URL(request.url)
    if here.scheme == "https" and there.scheme == "http":
        raise _refused(target, f"from https to {shown(str(there), request.mask)}: that would send it unencrypted")
    method, body, headers = request.method, request.body, request.headers
    if answer.status in _ELSEWHERE:
        method, body = ("HEAD" if method == "HEAD" else "GET"), b""
        headers = without(headers, _ABOUT_THE_BODY)
    if here.origin() != there.origin():
        headers = without(headers, request.private)
        return replace(request, method=method, url=str(there), headers=headers, body=body)
    # The login of a URL belongs to its origin.
    there = there.with_user(here.user).with_password(here.password)
    return replace(request, method=method, url=str(there), headers=headers, body=body)


def too_many(target: Http, request: Request, answer: HttpAnswer) -> DeliveryFailed:
    last = shown(answer.location or "", request.mask)
    return _refused(target, f"more than {target.redirects} times, at last to {last}")


def _next_url(target: Http, request: Request, location: str) -> URL:
    """The next URL, without a login: the receiver may not choose one."""
    try:
        there = URL(request.url).join(URL(location)).with_user(None)
    except (ValueError, TypeError):
        raise _refused(target, f"to {shown(location, request.mask)!r}, which is not a URL") from None
    if there.scheme not in ("http", "https") or not there.host or len(str(there)) > LONGEST_URL:
        raise _refused(target, f"to {shown(location, request.mask)!r}, where requests cannot go")
    return there


def _refused(target: Http, where: str) -> DeliveryFailed:
    return DeliveryFailed(f"{briefly(target)} was redirected {where}", final=True)
