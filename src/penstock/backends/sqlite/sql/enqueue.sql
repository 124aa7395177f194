-- Store one plain job. Constants cost less than parameters.
-- OR FAIL: SQLite does not undo a failed statement, because its error rolls back the whole call. That saves a statement
-- journal, which costs more than the statement.
INSERT OR FAIL INTO job ({plain_columns})
VALUES ({plain_values})
