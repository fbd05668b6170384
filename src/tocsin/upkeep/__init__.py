"""The periodic work of workers beside running jobs: recovery, cleanup, registration of agents, and health."""
