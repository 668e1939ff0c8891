-- wrk: POST /v1/recommend for 500 users in turn, from the one given on.
--
--   wrk -t1 -c16 -d10s --latency -s tools/serve_ask.lua http://127.0.0.1:8080 -- 1
--
-- With a number that no user has, the answers are the popular items and no model is computed: what
-- is left is HTTP, JSON and the engine's queue.
local n, first = 0, 1
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"

function init(args)
  first = tonumber(args[1]) or 1
end

function request()
  n = n + 1
  return wrk.format(nil, "/v1/recommend", nil, string.format('{"user": %d, "top_k": 10}', first + n % 500))
end
