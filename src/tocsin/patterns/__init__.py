"""The APIs of the schedulers that Tocsin replaces: agents, task queues, execution queues, delay queues."""

from tocsin.patterns.agent import Agent, AgentStats, Instrumentation
from tocsin.patterns.agent_scheduler import AgentScheduler
from tocsin.patterns.delay_queue import DelayQueue, Item
from tocsin.patterns.execution_queue import ExecutionQueue
from tocsin.patterns.tasks.queue import Task, TaskQueue
from tocsin.patterns.tasks.scheduler import State, TaskScheduler
from tocsin.patterns.tasks.schedules import Schedule
from tocsin.patterns.tasks.statistics import Statistics

__all__ = [
    "Agent",
    "AgentScheduler",
    "AgentStats",
    "DelayQueue",
    "ExecutionQueue",
    "Instrumentation",
    "Item",
    "Schedule",
    "State",
    "Statistics",
    "Task",
    "TaskQueue",
    "TaskScheduler",
]
