package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// chart has lines over a common axis.
type chart struct {
	title string
	lines []line
}

type line struct {
	name   string
	points []point
}

type point struct{ x, y float64 }

// colours are distinguishable for colour-blind readers (Okabe and Ito).
var colours = []string{"#0072b2", "#e69f00", "#009e73", "#000000", "#cc79a7", "#56b4e9", "#d55e00"}

const (
	chartWidth, chartHeight = 300, 220
	marginLeft, marginRight = 56, 14
	marginTop, marginBottom = 34, 44
	legendHeight            = 28
)

// drawCharts returns an SVG of charts side by side with one legend. All axes begin at 0, so that a
// linear growth is a straight line through the origin.
func drawCharts(axis string, charts []chart) string {
	var out strings.Builder
	width, height := chartWidth*len(charts), chartHeight+legendHeight
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`+"\n", width, height)
	fmt.Fprintf(&out, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", width, height)
	for i, c := range charts {
		fmt.Fprintf(&out, `<g transform="translate(%d 0)">`+"\n", i*chartWidth)
		c.draw(&out, axis)
		out.WriteString("</g>\n")
	}
	if len(charts) > 0 {
		x := marginLeft
		for i, l := range charts[0].lines {
			fmt.Fprintf(&out, `<path d="M%d %dh20" stroke="%s" stroke-width="2"/>`, x, chartHeight+8, colours[i%len(colours)])
			fmt.Fprintf(&out, `<text x="%d" y="%d">%s</text>`+"\n", x+26, chartHeight+12, html.EscapeString(l.name))
			x += 50 + 7*len(l.name)
		}
	}
	out.WriteString("</svg>\n")
	return out.String()
}

func (c chart) draw(out *strings.Builder, axis string) {
	highestX, highestY := 0.0, 0.0
	for _, l := range c.lines {
		for _, p := range l.points {
			highestX, highestY = max(highestX, p.x), max(highestY, p.y)
		}
	}
	stepX, stepY := tick(highestX), tick(highestY)
	endX, endY := max(stepX, math.Ceil(highestX/stepX)*stepX), max(stepY, math.Ceil(highestY/stepY)*stepY)
	const plotWidth, plotHeight = chartWidth - marginLeft - marginRight, chartHeight - marginTop - marginBottom
	atX := func(x float64) float64 { return marginLeft + x/endX*plotWidth }
	atY := func(y float64) float64 { return marginTop + plotHeight - y/endY*plotHeight }

	fmt.Fprintf(out, `<text x="%d" y="18" font-weight="bold">%s</text>`+"\n", marginLeft, html.EscapeString(c.title))
	for n := 0; float64(n)*stepY <= endY+stepY/2; n++ {
		y := float64(n) * stepY
		fmt.Fprintf(out, `<path d="M%d %.1fh%d" stroke="#dddddd"/>`, marginLeft, atY(y), plotWidth)
		fmt.Fprintf(out, `<text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n", marginLeft-6, atY(y)+4, number(y))
	}
	for n := 0; float64(n)*stepX <= endX+stepX/2; n++ {
		x := float64(n) * stepX
		fmt.Fprintf(out, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", atX(x), marginTop+plotHeight+16, number(x))
	}
	fmt.Fprintf(out, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", marginLeft+plotWidth/2, marginTop+plotHeight+32, html.EscapeString(axis))
	for i, l := range c.lines {
		colour := colours[i%len(colours)]
		var path []string
		for _, p := range l.points {
			path = append(path, fmt.Sprintf("%.1f %.1f", atX(p.x), atY(p.y)))
			fmt.Fprintf(out, `<circle cx="%.1f" cy="%.1f" r="2.5" fill="%s"/>`, atX(p.x), atY(p.y), colour)
		}
		fmt.Fprintf(out, `<path d="M%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(path, "L"), colour)
	}
}

// tick returns a round distance of at most six ticks up to the highest value.
func tick(highest float64) float64 {
	if highest <= 0 {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(highest/5)))
	for _, factor := range []float64{1, 2, 5} {
		if highest/(unit*factor) <= 5 {
			return unit * factor
		}
	}
	return unit * 10
}

func number(v float64) string { return fmt.Sprintf("%g", math.Round(v*1e6)/1e6) }
