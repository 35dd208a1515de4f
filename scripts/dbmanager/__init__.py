"""The parts of `scripts/database_manager.py`.

    server           the way to a MongoDB server, and the errors an operator sees
    terminal         tables, questions, progress; JSON instead of tables
    inventory        databases, collections, statistics
    cleanup          which documents are meant, and deleting them
    export           writing them to a file, JSON lines or CSV
    tally            documents of `messages` and `turns`, counted
    analyze          a collection through the tallies, or by its fields
    stored_settings  what the stored settings of an environment should become, and how they become it
    views            reports as tables
    operations       the above as an operator asks for it: shown, confirmed, done
    commands         subcommands and their options
    menu             the same, for a person at a terminal

Rules: what is read is gathered into frozen values first and shown afterwards, so that a table and `--json` cannot
differ. No stored content is ever printed. No exception of pymongo leaves a subcommand.
"""
