"""The parts of `scripts/database_manager.py`.

    server           the way to a MongoDB server, what is on it, and the errors an operator sees
    documents        which documents are meant; deleting them, writing them to a file
    analyze          documents of `messages` and `turns`, counted; the fields of any other collection
    stored_settings  what the stored settings of an environment should become, and how they become it
    terminal         reports as tables or JSON, questions, progress
    operations       the above as an operator asks for it: shown, confirmed, done
    commands         subcommands and their options
    menu             the same, for a person at a terminal

Rules: what is read is gathered into frozen values first and shown afterwards, so that a table and `--json` cannot
differ. No stored content is ever printed. No exception of pymongo leaves a subcommand.
"""
