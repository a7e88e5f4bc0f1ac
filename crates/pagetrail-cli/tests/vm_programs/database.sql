-- A database that is made, changed, and made anew.
PRAGMA cache_size = 50;
PRAGMA journal_mode = wal;
CREATE TABLE words (id INTEGER PRIMARY KEY, word TEXT NOT NULL, weight REAL);
CREATE TABLE changes (word TEXT, at INTEGER);
CREATE TRIGGER change AFTER UPDATE ON words WHEN new.id % 50 = 0
    BEGIN INSERT INTO changes VALUES (new.word, new.id); END;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 4000)
    INSERT INTO words SELECT i, printf('%08x-%s', i * 2654435761 % 4294967296, hex(i * i)), i / 7.0 FROM n;
CREATE INDEX by_word ON words (word);
CREATE UNIQUE INDEX by_weight ON words (weight DESC);
UPDATE words SET weight = weight + 10000, word = upper(word) WHERE id % 7 = 0;
DELETE FROM words WHERE id % 11 = 0;
BEGIN;
DELETE FROM words WHERE id > 100;
SELECT count(*) FROM words;
ROLLBACK;
ANALYZE;
PRAGMA wal_checkpoint(TRUNCATE);
PRAGMA integrity_check;
SELECT count(*), round(sum(weight), 6), min(word), max(word) FROM words;
SELECT word FROM words WHERE word > '8' AND word < '9' ORDER BY word LIMIT 3;
EXPLAIN QUERY PLAN SELECT * FROM words WHERE word = 'x';
SELECT count(*) FROM changes;
-- Sorted outside memory.
PRAGMA temp_store = file;
SELECT sum(n) FROM (SELECT row_number() OVER (ORDER BY weight * id % 101, word) AS n FROM words);
PRAGMA journal_mode = delete;
VACUUM;
VACUUM INTO 'copy.db';
PRAGMA mmap_size = 10000000;
SELECT count(*) FROM words NOT INDEXED WHERE weight > 300;
PRAGMA integrity_check;
.output dump.sql
.dump
.output
.system echo done
