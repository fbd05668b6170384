"""The first agent: `tocsin worker first_agent:app` runs it every 30 seconds, one at a time in the whole fleet."""

from tocsin import Tocsin

app = Tocsin()


@app.agent(every="30s", error_interval="5m", timeout="2m")
async def refresh_inventory() -> None:
    print("the inventory is fresh")
