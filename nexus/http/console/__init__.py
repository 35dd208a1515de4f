"""The console: what is kept of owners and what models were given, as pages (contract §16).

- A page is made on the server, of values that services and ports give; there is no JavaScript.
- One module a group of pages, with its templates; `shell` is what all share, `access` decides who may see and change.
"""
