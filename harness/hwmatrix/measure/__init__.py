"""How well: latency, memory, parity. Nothing here knows which backend it measures."""
