"""What an operator can look at: queues, workers and jobs, the doctor's audit, and why a job does not run."""
