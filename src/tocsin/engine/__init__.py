"""Motion: how due runs are fetched, executed, decided and finished."""
