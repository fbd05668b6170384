"""The seeds' own APIs, thin, on the same core."""

from tocsin.patterns.agent_scheduler import Agent, AgentScheduler, AgentStats, Instrumentation
from tocsin.patterns.delay_queue import DelayQueue, Item
from tocsin.patterns.execution_queue import ExecutionQueue

__all__ = ["Agent", "AgentScheduler", "AgentStats", "DelayQueue", "ExecutionQueue", "Instrumentation", "Item"]
