package terminal

import (
	"slices"
	"strconv"
	"strings"
)

const gap = "  "

// A Cell is a text in a table, and its colour.
type Cell struct {
	Text   string
	Colour Colour
}

// Text returns a cell without a colour.
func Text(text string) Cell { return Cell{Text: text} }

// Number returns a cell with a number.
func Number(n int64) Cell { return Text(strconv.FormatInt(n, 10)) }

// Fault returns a cell with a number that should be zero.
func Fault(n int64) Cell {
	cell := Number(n)
	if n != 0 {
		cell.Colour = Red
	}
	return cell
}

// Table returns the lines of a table. If it is wider than the style, the widest columns are cut.
func Table(style Style, header []string, rows [][]Cell) []string {
	widths := make([]int, len(header))
	for i, name := range header {
		widths[i] = Width(name)
		for _, row := range rows {
			widths[i] = max(widths[i], Width(row[i].Text))
		}
	}
	shrink(widths, style.Width-len(gap)*(len(header)-1))
	titles := make([]Cell, len(header))
	for i, name := range header {
		titles[i] = Cell{name, Faint}
	}
	var lines []string
	for _, row := range append([][]Cell{titles}, rows...) {
		var b strings.Builder
		for i, cell := range row {
			if i > 0 {
				b.WriteString(gap)
			}
			text := Fill(cell.Text, widths[i])
			if i == len(row)-1 {
				text = Cut(cell.Text, widths[i])
			}
			b.WriteString(style.Paint(cell.Colour, text))
		}
		lines = append(lines, strings.TrimRight(b.String(), " "))
	}
	return lines
}

// shrink takes columns from the widest one until their sum is at most total.
func shrink(widths []int, total int) {
	sum := 0
	for _, w := range widths {
		sum += w
	}
	for ; sum > total; sum-- {
		widest := slices.Index(widths, slices.Max(widths))
		if widths[widest] <= 1 {
			return
		}
		widths[widest]--
	}
}
