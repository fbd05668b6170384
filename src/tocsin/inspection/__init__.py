"""The operator's door: what an operator may see, the doctor, and why a job does not run."""
