! A procedure of a module, whose name the compiler mangles.
module heat
  use iso_c_binding
  interface
    integer(c_int) function pause_c() bind(c, name="pause")
      import
    end function
  end interface
contains
  recursive subroutine sweep(depth)
    integer, intent(in) :: depth
    integer(c_int) :: ignored
    if (depth == 0) then
      do
        ignored = pause_c()
      end do
    end if
    call sweep(depth - 1)
  end subroutine
end module

program main_heat
  use heat
  print '(a)', "ready"
  flush(6)
  call sweep(2)
end program
