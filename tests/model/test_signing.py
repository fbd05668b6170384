"""Signatures: what another implementation of Standard Webhooks says of ours, and we of its; what is refused."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from tocsin.model.clock import wall_ms
from tocsin.model.errors import InvalidArgument, InvalidSignature
from tocsin.model.webhook_signature import key_of, sign, verify

SECRET = "whsec_" + base64.b64encode(b"a secret of 24 bytes, ok").decode()
OTHER = "whsec_" + base64.b64encode(b"another one of 24 bytes.").decode()
KEY = "9f86d081884c7d659a2feaa0c55ad015"
NOW = 1_790_000_000


def signed(body: bytes, *secrets: str, at: int = NOW) -> dict[str, str]:
    return {
        "webhook-id": KEY,
        "webhook-timestamp": str(at),
        "webhook-signature": sign(secrets or (SECRET,), KEY, at, body),
    }


class TestTheOtherImplementation:
    def test_it_accepts_what_we_sign(self):
        body = '{"n": 1, "name": "ø"}'
        headers = signed(body.encode(), at=wall_ms() // 1000)
        assert Webhook(SECRET).verify(body, headers) == {"n": 1, "name": "ø"}
        with pytest.raises(WebhookVerificationError):
            Webhook(OTHER).verify(body, headers)

    @given(st.text(), st.binary(min_size=16, max_size=64), st.integers(0, 2**34))
    def test_it_signs_as_we_do(self, body: str, key: bytes, at: int):
        theirs = Webhook(key).sign(KEY, datetime.fromtimestamp(at, UTC), body)
        assert sign([base64.b64encode(key).decode()], KEY, at, body.encode()) == theirs
        headers = {"Webhook-Id": KEY, "Webhook-Timestamp": str(at), "Webhook-Signature": theirs}
        assert verify([base64.b64encode(key).decode()], headers, body.encode(), at) == KEY


class TestVerify:
    def test_it_returns_the_id_that_was_signed(self):
        assert verify([SECRET], signed(b"{}"), b"{}", NOW) == KEY

    @pytest.mark.parametrize("body", [b"", b"\xff\xfe\x00", bytes(range(256))], ids=["empty", "not utf-8", "any"])
    def test_a_body_is_any_bytes(self, body):
        assert verify([SECRET], signed(body), body, NOW) == KEY
        with pytest.raises(InvalidSignature, match="no signature is by a known secret"):
            verify([SECRET], signed(body), body + b"\x00", NOW)

    def test_another_secret_is_refused(self):
        with pytest.raises(InvalidSignature, match="no signature is by a known secret"):
            verify([OTHER], signed(b"{}"), b"{}", NOW)

    def test_secrets_can_be_changed_on_either_side_first(self):
        assert verify([OTHER, SECRET], signed(b"{}", SECRET), b"{}", NOW) == KEY
        assert verify([SECRET], signed(b"{}", OTHER, SECRET), b"{}", NOW) == KEY
        assert verify([OTHER], signed(b"{}", OTHER, SECRET), b"{}", NOW) == KEY

    def test_a_secret_reads_the_same_with_and_without_its_prefix_and_padding(self):
        bare = base64.b64encode(b"twenty-five bytes of key!").decode()
        assert key_of(bare) == key_of(f"whsec_{bare}") == key_of(bare.rstrip("=")) == key_of(f"{bare}\n")

    @pytest.mark.parametrize(("at", "says"), [(NOW - 301, "too old"), (NOW + 301, "too far in the future")])
    def test_what_was_signed_at_another_time_is_refused(self, at, says):
        with pytest.raises(InvalidSignature, match=says):
            verify([SECRET], signed(b"{}", at=at), b"{}", NOW)
        assert verify([SECRET], signed(b"{}", at=at), b"{}", NOW, tolerance_s=301) == KEY

    @pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
    @pytest.mark.parametrize("value", [None, ""], ids=["missing", "empty"])
    def test_a_header_that_is_missing_is_named(self, name, value):
        headers = {key: text for key, text in signed(b"{}").items() if key != name}
        with pytest.raises(InvalidSignature, match=f"no {name}"):
            verify([SECRET], headers if value is None else headers | {name: value}, b"{}", NOW)

    @pytest.mark.parametrize("timestamp", ["soon", "-1", "1.5", "1" * 5000, "١٢", " ", "1e9"])
    def test_a_timestamp_that_is_none_is_refused(self, timestamp):
        with pytest.raises(InvalidSignature, match="not a number of seconds"):
            verify([SECRET], signed(b"{}") | {"webhook-timestamp": timestamp}, b"{}", NOW)

    @pytest.mark.parametrize("changed", [{"webhook-id": "another"}, {"webhook-timestamp": str(NOW + 1)}])
    def test_id_and_time_are_signed_too(self, changed):
        with pytest.raises(InvalidSignature, match="no signature is by a known secret"):
            verify([SECRET], signed(b"{}") | changed, b"{}", NOW)

    def test_an_id_cannot_borrow_from_the_body(self):
        """`a.1` + `2` + `x` would be the same bytes as `a` + `1` + `2.x`."""
        headers = {"webhook-id": f"{KEY}.{NOW}", "webhook-timestamp": str(NOW)}
        borrowed = sign([SECRET], KEY, NOW, f"{NOW}.x".encode())
        with pytest.raises(InvalidSignature, match="without a dot"):
            verify([SECRET], headers | {"webhook-signature": borrowed}, b"x", NOW)

    @pytest.mark.parametrize("offered", ["v1", "v1,", ",", "v2,{mac}", "v1a,{mac}", "{mac}", "v1,{mac}A", "v1,\udcff"])
    def test_a_signature_of_another_form_is_refused(self, offered):
        mac = sign([SECRET], KEY, NOW, b"{}").partition(",")[2]
        with pytest.raises(InvalidSignature, match="no signature is by a known secret"):
            verify([SECRET], signed(b"{}") | {"webhook-signature": offered.format(mac=mac)}, b"{}", NOW)

    def test_signatures_of_other_versions_stand_beside_ours(self):
        ours = sign([SECRET], KEY, NOW, b"{}")
        headers = signed(b"{}") | {"webhook-signature": f"v1a,c2ln {ours} v9"}
        assert verify([SECRET], headers, b"{}", NOW) == KEY


@pytest.mark.parametrize("secret", ["", "whsec_", "no base64!", "whsec_ø", "====", "a"])
def test_a_secret_that_is_none_is_refused_and_not_quoted(secret):
    with pytest.raises(InvalidArgument, match="is empty or not base64") as refused:
        sign([SECRET, secret], KEY, NOW, b"")
    assert not secret.strip("=") or f"{secret!r}" not in str(refused.value)


@pytest.mark.parametrize("size", [1, 3, 15])
def test_a_secret_that_could_be_guessed_is_refused_with_how_to_make_one(size):
    short = base64.b64encode(b"k" * size).decode()
    for refused in (lambda: sign([short], KEY, NOW, b""), lambda: verify([short], signed(b""), b"", NOW)):
        with pytest.raises(
            InvalidArgument, match=rf"at least 16 bytes, this one has {size}: .*openssl rand -base64 32"
        ):
            refused()


@pytest.mark.parametrize("secrets", [[], SECRET], ids=["none", "text"])
def test_secrets_are_a_list_of_at_least_one(secrets):
    with pytest.raises(InvalidArgument, match="a list of at least one"):
        sign(secrets, KEY, NOW, b"")
    with pytest.raises(InvalidArgument, match="a list of at least one"):
        verify(secrets, signed(b""), b"", NOW)


@pytest.mark.parametrize("message_id", ["", "a.b", "a\nb", "ø"])
def test_an_id_that_cannot_be_signed_is_refused(message_id):
    with pytest.raises(InvalidArgument, match="without a dot"):
        sign([SECRET], message_id, NOW, b"")
