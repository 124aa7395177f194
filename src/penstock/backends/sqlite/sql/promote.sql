-- Move due jobs into the ready set, the most urgent first. `due` selects up to so many of each priority along the index.
UPDATE job
SET gate = 0
WHERE seq IN (SELECT seq FROM ({due}) ORDER BY priority, due_at, seq LIMIT ?2)
RETURNING {columns}
