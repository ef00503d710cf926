package simulate

import "time"

// graph is a network of flows. Arcs are in pairs: the arc with index i^1 is the reverse of arc i.
type graph struct {
	arcs []arc
	from [][]int // indexes of arcs, by node
}

type arc struct {
	to, capacity int
	cost         time.Duration
}

func newGraph(nodes int) *graph { return &graph{from: make([][]int, nodes)} }

func (g *graph) add(from, to, capacity int, cost time.Duration) {
	g.from[from] = append(g.from[from], len(g.arcs))
	g.from[to] = append(g.from[to], len(g.arcs)+1)
	g.arcs = append(g.arcs, arc{to, capacity, cost}, arc{from, 0, -cost})
}

// minCost returns the least cost of a flow of the given size. It sends one unit after another along
// the shortest path of what remains.
func (g *graph) minCost(source, sink, size int) time.Duration {
	var total time.Duration
	for range size {
		distance, last := g.shortest(source)
		if last[sink] < 0 {
			panic("the flow does not fit")
		}
		total += distance[sink]
		for node := sink; node != source; node = g.arcs[last[node]^1].to {
			g.arcs[last[node]].capacity--
			g.arcs[last[node]^1].capacity++
		}
	}
	return total
}

// shortest returns the distance of each node from the source, and the last arc on the way to it, or
// -1.
func (g *graph) shortest(source int) (distance []time.Duration, last []int) {
	distance, last = make([]time.Duration, len(g.from)), make([]int, len(g.from))
	for i := range last {
		last[i] = -1
	}
	queued := make([]bool, len(g.from))
	for queue := []int{source}; len(queue) > 0; {
		node := queue[0]
		queue, queued[node] = queue[1:], false
		for _, i := range g.from[node] {
			a := g.arcs[i]
			d := distance[node] + a.cost
			if a.capacity == 0 || a.to == source || last[a.to] >= 0 && d >= distance[a.to] {
				continue
			}
			distance[a.to], last[a.to] = d, i
			if !queued[a.to] {
				queue, queued[a.to] = append(queue, a.to), true
			}
		}
	}
	return distance, last
}
