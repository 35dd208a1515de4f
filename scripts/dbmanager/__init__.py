"""The parts of `scripts/database_manager.py`.

    server        the way to a MongoDB server, and the errors an operator sees
    terminal      tables, questions, progress; JSON instead of tables
    criteria      which documents are meant
    inventory     databases, collections, statistics
    cleanup       delete what is meant
    csvcells      a document as cells that a spreadsheet does not execute
    export        write what is meant to a file
    tally         what the rows of `messages` say, counted
    turntally     what the documents of `turns` say, counted
    analyze       `messages` and `turns` through the tallies; any other collection by its fields
    configplan    what the stored settings of an environment should become (pure)
    configstore   … and how they become it
    operations    the above as an operator asks for it: shown, confirmed, done
    commands      subcommands and their options
    menu          the same, for a person at a terminal

Rules: what is read is gathered into frozen values first and shown afterwards, so that a table and `--json` cannot
differ. No stored content is ever printed. No exception of pymongo leaves a subcommand.
"""
