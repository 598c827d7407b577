-- The functions of the plugin `cluster`; Python puts the first line, which names the library.
--
-- Theory of operation. A call names what it is about by the common beginning of its keys, all of
-- which have one hash tag. Behind that of the cluster stand:
--
--   :epochs     hash: epoch of each node that is a member
--   :nodes      hash: what each member tells of itself, as JSON; '' until it is announced
--   :alive:NODE is there while the member's beats come; the server's clock ends it
--   :routes:NODE hash: the member's topic filters, and of shared ones how many members they have
--   :retained   hash: retained messages by topic
--   :changes    stream: what has changed of all these, in the order in which it did
--   :duties     hash: what is to be done for a member that has died, to who has to do it
--   :m          hash: epoch, the newest that was given; last, the newest identifier of :changes;
--               c NODE and r NODE, the numbers of a member's newest change and retained message
--
-- behind that of a node and its epoch:
--
--   :inbox      stream: what other nodes have put there; each entry has one field, which is called as
--               its origin: node, epoch and number
--   :notes      stream: what other nodes tell it
--   :wills      hash: wills of its clients
--   :s          hash: bytes in the inbox; sealed, where nothing more may come; o NODE, epoch and
--               number of what a node has put there last
--
-- and behind that of some clients, chosen by their checksum: :o, a hash of client to owner: node,
-- epoch, and number of the claim that has made it so.
--
-- A call may come twice: what has an effect that cannot be repeated has a number, beside the epoch of
-- its node. What comes of an epoch that has ended is refused with FENCED.

local MOST_CHANGES = 20000  -- that are kept; who is behind them reads everything anew
local INLINE_BYTES = 4096   -- a larger retained message is looked up by who reads of it

local FENCED = 'PENSTOCK fenced'
local GONE = 'PENSTOCK gone'

local function call(...) return redis.call(...) end
local function refuse(what) return redis.error_reply(what) end

-- Adds an entry. Its first pairs are kind and identifier of the entry before it, node and epoch, and
-- the number; others follow. Who misses an entry sees it by the identifier.
local function note(base, kind, node, epoch, number, ...)
  local meta = base .. ':m'
  local last = call('HGET', meta, 'last') or '0-0'
  local id = call('XADD', base .. ':changes', 'MAXLEN', '~', MOST_CHANGES, '*',
    kind, last, node, epoch, '#', number, ...)
  call('HSET', meta, 'last', id)
  return id
end

local function is_member(base, node, epoch)
  return call('HGET', base .. ':epochs', node) == epoch
end

local functions = {}

-- Makes a node a member, which others do not see yet. The token tells its repeats.
function functions.join(keys, args)
  local base, node, token, milliseconds = keys[1], args[1], args[2], args[3]
  local alive = base .. ':alive:' .. node
  local epoch = call('HGET', base .. ':epochs', node)
  if epoch then
    local there = call('GET', alive)
    if there == token then return {'joined', epoch} end
    return {there and 'alive' or 'dead', epoch, call('HGET', base .. ':nodes', node) or ''}
  end
  epoch = string.format('%d', call('HINCRBY', base .. ':m', 'epoch', 1))
  call('HDEL', base .. ':m', 'c ' .. node, 'r ' .. node)
  call('HSET', base .. ':epochs', node, epoch)
  call('HSET', base .. ':nodes', node, '')
  call('SET', alive, token, 'PX', milliseconds)
  return {'joined', epoch}
end

-- Shows a member to the others.
function functions.announce(keys, args)
  local base, node, epoch, info = keys[1], args[1], args[2], args[3]
  if not is_member(base, node, epoch) then return refuse(FENCED) end
  call('HSET', base .. ':nodes', node, info)
  return note(base, 'join', node, epoch, 0, 'info', info)
end

-- Keeps a member. Answers the newest entry, the member's newest number, and who has stopped beating.
function functions.beat(keys, args)
  local base, node, epoch, milliseconds = keys[1], args[1], args[2], args[3]
  if not is_member(base, node, epoch) then return refuse(FENCED) end
  local alive = base .. ':alive:' .. node
  if call('PEXPIRE', alive, milliseconds) == 0 then call('SET', alive, '', 'PX', milliseconds) end
  local told = call('HMGET', base .. ':m', 'last', 'c ' .. node)
  local dead = {}
  local epochs = call('HGETALL', base .. ':epochs')
  for i = 1, #epochs, 2 do
    if call('EXISTS', base .. ':alive:' .. epochs[i]) == 0 then
      dead[#dead + 1] = epochs[i]
      dead[#dead + 1] = epochs[i + 1]
    end
  end
  return {told[1] or '0-0', told[2] or '0', dead}
end

-- Ends a member. `by` has to do for it what it cannot do any more, and what it had to do for others.
local function remove(base, node, epoch, by)
  call('HDEL', base .. ':epochs', node)
  call('HDEL', base .. ':nodes', node)
  call('DEL', base .. ':alive:' .. node)
  call('UNLINK', base .. ':routes:' .. node)
  call('HDEL', base .. ':m', 'c ' .. node, 'r ' .. node)
  local key = base .. ':duties'
  if by ~= '' then
    local duties = call('HGETALL', key)
    for i = 1, #duties, 2 do
      if duties[i + 1] == node then call('HSET', key, duties[i], by) end
    end
    call('HSET', key, node .. ' ' .. epoch, by)
  end
  note(base, 'leave', node, epoch, 0, 'by', by)
end

function functions.leave(keys, args)
  if is_member(keys[1], args[1], args[2]) then remove(keys[1], args[1], args[2], '') end
  return 1
end

-- Ends a member whose beats have stopped, unless somebody else has done so.
function functions.evict(keys, args)
  local base, node, epoch, by = keys[1], args[1], args[2], args[3]
  if not is_member(base, node, epoch) then return 0 end
  if call('EXISTS', base .. ':alive:' .. node) == 1 then return 0 end
  remove(base, node, epoch, by)
  return 1
end

function functions.done(keys, args)
  return call('HDEL', keys[1] .. ':duties', args[1] .. ' ' .. args[2])
end

-- Returns whether a number is that of a call that was carried out before.
local function is_repeat(base, kind, node, number)
  local name = kind .. ' ' .. node
  local last = call('HGET', base .. ':m', name)
  if last and tonumber(last) >= tonumber(number) then return true end
  call('HSET', base .. ':m', name, number)
  return false
end

-- Changes routes: filters, each with its number of members, 0 for none.
function functions.change(keys, args)
  local base, node, epoch, number = keys[1], args[1], args[2], args[3]
  if not is_member(base, node, epoch) then return refuse(FENCED) end
  if is_repeat(base, 'c', node, number) then return 0 end
  local key = base .. ':routes:' .. node
  for i = 4, #args, 2 do
    if args[i + 1] == '0' then
      call('HDEL', key, args[i])
    else
      call('HSET', key, args[i], args[i + 1])
    end
  end
  note(base, 'routes', node, epoch, number, unpack(args, 4))
  return 1
end

-- Sets or clears what is retained; one that is not in the entry is to be looked up.
function functions.retain(keys, args)
  local base, node, epoch, number, topic, data = keys[1], unpack(args)
  if not is_member(base, node, epoch) then return refuse(FENCED) end
  if is_repeat(base, 'r', node, number) then return 0 end
  if data == '' then
    call('HDEL', base .. ':retained', topic)
  else
    call('HSET', base .. ':retained', topic, data)
  end
  if #data > INLINE_BYTES then
    note(base, 'large', node, epoch, number, topic, '')
  else
    note(base, 'retained', node, epoch, number, topic, data)
  end
  return 1
end

-- Opens the inbox of a node for its epoch.
function functions.open(keys)
  if call('HSETNX', keys[1] .. ':s', 'bytes', '0') == 1 then
    call('XADD', keys[1] .. ':notes', '*', '', '')
  end
  return 1
end

-- Puts data into an inbox; answers the bytes in it. Without data it asks for that alone.
function functions.put(keys, args)
  local base, node, epoch, number, data = keys[1], unpack(args)
  local key, own = base .. ':s', 'o ' .. node
  local told = call('HMGET', key, 'bytes', own, 'sealed')
  if not told[1] or told[3] then return refuse(GONE) end
  local bytes = tonumber(told[1])
  if data == '' then return bytes end
  if told[2] then
    local last_epoch, last_number = string.match(told[2], '(%d+) (%d+)')
    last_epoch = tonumber(last_epoch)
    if last_epoch > tonumber(epoch) then return refuse(FENCED) end
    if last_epoch == tonumber(epoch) and tonumber(last_number) >= tonumber(number) then
      return bytes
    end
  end
  bytes = bytes + #data
  local origin = epoch .. ' ' .. number
  call('XADD', base .. ':inbox', '*', node .. ' ' .. origin, data)
  call('HSET', key, 'bytes', string.format('%d', bytes), own, origin)
  return bytes
end

-- Removes entries, which had so many bytes; answers the bytes that are left.
function functions.delete(keys, args)
  local base = keys[1]
  local key = base .. ':s'
  local bytes = tonumber(call('HGET', key, 'bytes') or '0')
  if call('XDEL', base .. ':inbox', unpack(args, 2)) > 0 then
    bytes = math.max(0, bytes - tonumber(args[1]))
    call('HSET', key, 'bytes', string.format('%d', bytes))
  end
  return bytes
end

-- Refuses what a node of an epoch that has ended still puts into an inbox.
function functions.fence(keys, args)
  local node, ended = args[1], tonumber(args[2])
  local key, own = keys[1] .. ':s', 'o ' .. node
  local told = call('HMGET', key, 'bytes', own)
  if not told[1] then return 0 end
  local last = told[2] and tonumber(string.match(told[2], '%d+')) or 0
  if last <= ended then call('HSET', key, own, string.format('%d 0', ended + 1)) end
  return 1
end

-- Lets nothing more into an inbox; what is in it can be read.
function functions.seal(keys)
  local key = keys[1] .. ':s'
  if call('EXISTS', key) == 1 then call('HSET', key, 'sealed', '1') end
  return 1
end

-- Removes all that is kept of a node's epoch.
function functions.drop(keys)
  local base = keys[1]
  return call('UNLINK', base .. ':inbox', base .. ':notes', base .. ':wills', base .. ':s')
end

-- Keeps the will of a client, or none where it is ''.
function functions.will(keys, args)
  local base, client, will = keys[1], args[1], args[2]
  if call('EXISTS', base .. ':s') == 0 then return refuse(GONE) end
  if will == '' then
    call('HDEL', base .. ':wills', client)
  else
    call('HSET', base .. ':wills', client, will)
  end
  return 1
end

local OWNER = '^(%S+) (%d+) (%d+)$'

-- Makes a node the owner of a client that has none, whose owner is the one that is displaced, or the
-- node itself by an earlier claim. Answers who is the owner then.
function functions.claim(keys, args)
  local client, node, epoch, number, displaced = unpack(args)
  local key = keys[1] .. ':o'
  local now = call('HGET', key, client)
  if now and now ~= displaced then
    local own, own_epoch, own_number = string.match(now, OWNER)
    if own ~= node then return now end
    own_epoch = tonumber(own_epoch)
    if own_epoch > tonumber(epoch) then return refuse(FENCED) end
    if own_epoch == tonumber(epoch) and tonumber(own_number) > tonumber(number) then return now end
  end
  local owner = node .. ' ' .. epoch .. ' ' .. number
  call('HSET', key, client, owner)
  return owner
end

-- Ends that a node is the owner of a client, by a claim or an earlier one.
function functions.release(keys, args)
  local client, node, epoch, number = unpack(args)
  local key = keys[1] .. ':o'
  local now = call('HGET', key, client)
  if not now then return 0 end
  local own, own_epoch, own_number = string.match(now, OWNER)
  if own ~= node or own_epoch ~= epoch or tonumber(own_number) > tonumber(number) then return 0 end
  return call('HDEL', key, client)
end

local NAMES = {
  'join', 'announce', 'beat', 'leave', 'evict', 'done', 'change', 'retain', 'open', 'put',
  'delete', 'fence', 'seal', 'drop', 'will', 'claim', 'release'
}

for i = 1, #NAMES do redis.register_function(PREFIX .. NAMES[i], functions[NAMES[i]]) end
