package traces
import ("testing";"os";"time";"fmt"
"macrack.io/macrack/runners/pkg/simulate"
"macrack.io/macrack/runners/pkg/floor")
func TestTry(t *testing.T){
 for _,n:=range Names{
  s:=time.Now()
  jobs:=Generate(n)
  fmt.Println(n,len(jobs))
  simulate.Print(os.Stdout, simulate.Compare(jobs, floor.Limits{Max:8,PerLease:2,Warm:1,GrowAfter:5*time.Minute,KeepIdle:time.Hour,DecideBefore:15*time.Minute}, simulate.Timing{Bind:2*time.Minute,Boot:time.Minute}))
  fmt.Println(time.Since(s))
 }
}
