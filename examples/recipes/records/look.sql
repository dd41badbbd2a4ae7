create view records as select id, sentence, text, name, age, city, text::json as written
from 'out/recipes/records/data/*.parquet';
select id, sentence, text from records order by id limit 4;
select count(*) filter (written->>'name' = name) as names, count(*) filter ((written->>'age')::int = age) as ages,
  count(*) filter (written->>'city' = city) as cities, count(*) as of from records;
