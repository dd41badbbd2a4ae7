create view answers as select * from 'out/recipes/distill/data/*.parquet';
-- What a student learns from: the answers that are right, each thought once.
copy (select distinct question, reasoning, content from answers where content = answer order by all)
to 'out/recipes/distill/train.jsonl' (format json);
select question, reasoning, content from 'out/recipes/distill/train.jsonl' limit 4;
select count(*) filter (content = answer) as right, count(*) as answers,
  count(distinct question) filter (content = answer) as questions_with_a_right_one from answers;
