create view pairs as select id, french, trim(text) as translated, english from 'out/recipes/translate/data/*.parquet';
select id, french, translated from pairs order by id limit 4;
select count(*) filter (lower(translated) = lower(english)) as as_a_person_says, count(*) as pairs from pairs;
