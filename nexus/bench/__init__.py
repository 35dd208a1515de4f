"""`nexus bench`: what a context costs, measured on real servers (CONTRACT §10).

`commands` is the command, `groups` what can be measured. A group plays cells (`rounds`): some kind of request
(`shapes`), asked in a closed loop (`load`), of processes (`responders`) that are Nexus or the least that could answer
(`floor`). `servers` makes and drops what that takes, `results` and `shown` say what came of it.
"""
