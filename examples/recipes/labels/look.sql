create view labels as select id, review, trim(text) as written, label from 'out/recipes/labels/data/*.parquet';
select id, review, written from labels order by id limit 4;
select count(*) filter (written = label) as as_people_say, count(*) as reviews from labels;
