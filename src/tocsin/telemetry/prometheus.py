"""Serves metrics to Prometheus: an HTTP server on a thread of its own."""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry.metrics import set_meter_provider

from tocsin.model.errors import InvalidConfig


def serve_metrics(host: str, port: int) -> Callable[[], None]:
    """Serve this process's metrics at /metrics until the returned function is called. Call it before workers start."""
    try:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from opentelemetry.sdk.metrics import MeterProvider
        from prometheus_client import start_http_server
    except ImportError:
        raise InvalidConfig("metrics for Prometheus need more packages: install tocsin[metrics]") from None
    reader = PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False)
    set_meter_provider(MeterProvider(metric_readers=[reader]))
    try:
        server, thread = start_http_server(port, addr=host)
    except OSError as error:
        raise InvalidConfig(f"metrics cannot be shown at {host}:{port}: {error.strerror}") from None

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join(5)

    return end
