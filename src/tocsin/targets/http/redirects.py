"""Where a redirect leads, and what goes along."""

from __future__ import annotations

from msgspec.structs import replace
from yarl import URL

from tocsin.model.delivery import DeliveryFailed
from tocsin.model.http import LONGEST_URL, Http
from tocsin.targets.http.answer import HttpAnswer, briefly, is_success, shown
from tocsin.targets.http.request import SIGNED, Request, without

# With these the request is sent again as it is; with the others the answer is elsewhere, to be fetched.
_SAME_REQUEST = (307, 308)
_ELSEWHERE = (301, 302, 303)
# Of a body that is left behind.
_ABOUT_THE_BODY = frozenset(["content-type", "content-encoding"]) | SIGNED


def leads_on(target: Http, answer: HttpAnswer) -> bool:
    """Whether it is to be followed."""
    redirect = answer.status in _SAME_REQUEST or answer.status in _ELSEWHERE
    return redirect and target.redirects > 0 and answer.location is not None and not is_success(target, answer.status)


def hop(target: Http, request: Request, answer: HttpAnswer) -> Request:
    """The request that follows. What is for the receiver alone stays with its origin."""
    there = _join(target, request, answer.location or "")
    here = URL(request.url)
    if here.scheme == "https" and there.scheme == "http":
        raise _refused(
            target, f"from https to {shown(str(there), request.veil)}: what was encrypted would be read by others"
        )
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
    last = shown(answer.location or "", request.veil)
    return _refused(target, f"more than {target.redirects} times, at last to {last}")


def _join(target: Http, request: Request, location: str) -> URL:
    """Without a login: whoever answers may not choose one."""
    try:
        there = URL(request.url).join(URL(location)).with_user(None)
    except (ValueError, TypeError):
        raise _refused(target, f"to {shown(location, request.veil)!r}, which is no URL") from None
    if there.scheme not in ("http", "https") or not there.host or len(str(there)) > LONGEST_URL:
        raise _refused(target, f"to {shown(location, request.veil)!r}, where requests cannot go")
    return there


def _refused(target: Http, where: str) -> DeliveryFailed:
    return DeliveryFailed(f"{briefly(target)} was redirected {where}", final=True)
