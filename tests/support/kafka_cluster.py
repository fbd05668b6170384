"""The cluster that librdkafka has inside, for its own tests: it speaks Kafka's protocol, on loopback.

confluent-kafka starts one too (`test.mock.num.brokers`), but has no way to take its brokers down.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_int16, c_int32, c_size_t, c_void_p
from pathlib import Path
from typing import Any

PRODUCE = 0
BROKERS = (1, 2)
# Numbers of Kafka's errors.
UNKNOWN_TOPIC, TOO_LARGE, FORBIDDEN_TOPIC, NOT_ENOUGH_REPLICAS = 3, 10, 29, 19

_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "rd_kafka_conf_new": (c_void_p, []),
    "rd_kafka_conf_set": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]),
    "rd_kafka_new": (c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
    "rd_kafka_destroy": (None, [c_void_p]),
    "rd_kafka_mock_cluster_new": (c_void_p, [c_void_p, c_int]),
    "rd_kafka_mock_cluster_destroy": (None, [c_void_p]),
    "rd_kafka_mock_cluster_bootstraps": (c_char_p, [c_void_p]),
    "rd_kafka_mock_broker_set_down": (c_int, [c_void_p, c_int32]),
    "rd_kafka_mock_broker_set_up": (c_int, [c_void_p, c_int32]),
    "rd_kafka_mock_broker_set_rtt": (c_int, [c_void_p, c_int32, c_int]),
    "rd_kafka_mock_topic_create": (c_int, [c_void_p, c_char_p, c_int, c_int]),
    "rd_kafka_mock_topic_set_error": (None, [c_void_p, c_char_p, c_int]),
    "rd_kafka_mock_push_request_errors_array": (None, [c_void_p, c_int16, c_size_t, POINTER(c_int)]),
}


def _library() -> Any:
    import confluent_kafka

    folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    library = ctypes.CDLL(str(next(folder.glob("librdkafka*"))))
    for name, (answer, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = answer, arguments
    return library


class KafkaCluster:
    """Two brokers; topics are created when they are asked for, with four partitions."""

    def __init__(self) -> None:
        self._kafka = _library()
        said = ctypes.create_string_buffer(512)
        conf = self._kafka.rd_kafka_conf_new()
        # It warns that it has no brokers to connect to: it is only there to hold the cluster.
        self._kafka.rd_kafka_conf_set(conf, b"log_level", b"0", said, 512)
        self._client = self._kafka.rd_kafka_new(0, conf, said, 512)
        assert self._client, said.value
        self._cluster = self._kafka.rd_kafka_mock_cluster_new(self._client, len(BROKERS))
        self.hosts: str = self._kafka.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def kill(self) -> None:
        """All brokers close their connections, and accept none."""
        for broker in BROKERS:
            self._kafka.rd_kafka_mock_broker_set_down(self._cluster, broker)

    def start(self) -> None:
        self._answer_in(0)
        for broker in BROKERS:
            self._kafka.rd_kafka_mock_broker_set_up(self._cluster, broker)

    def pause(self) -> None:
        """They take what comes, and answer in a minute."""
        self._answer_in(60_000)

    def resume(self) -> None:
        """Whoever waits for an answer of before must ask again."""
        self.kill()
        self.start()

    def _answer_in(self, ms: int) -> None:
        for broker in BROKERS:
            self._kafka.rd_kafka_mock_broker_set_rtt(self._cluster, broker, ms)

    def create(self, topic: str) -> None:
        self._kafka.rd_kafka_mock_topic_create(self._cluster, topic.encode(), 4, 1)

    def hide(self, topic: str) -> None:
        self._kafka.rd_kafka_mock_topic_set_error(self._cluster, topic.encode(), UNKNOWN_TOPIC)

    def answer_next(self, request: int, *errors: int) -> None:
        """The next requests of that kind fail, one after the other."""
        codes = (c_int * len(errors))(*errors)
        self._kafka.rd_kafka_mock_push_request_errors_array(self._cluster, request, len(errors), codes)

    def stop(self) -> None:
        self._kafka.rd_kafka_mock_cluster_destroy(self._cluster)
        self._kafka.rd_kafka_destroy(self._client)
